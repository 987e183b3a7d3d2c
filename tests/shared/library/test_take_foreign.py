"""take where foreign hands were: keys deleted, groups destroyed, entries that are not ours."""

from __future__ import annotations

import pytest
from redis import Redis
from tests.model.dump import raw_rows
from tests.shared.library.driver import HeldLibrary, admit, finish, take
from tests.shared.library.rig import request_id

QUEUE = "queue:normal:ann:0"

JUNK = {
    "no fields of ours": {b"junk": b"1"},
    "no body": {b"id": b"rig.1", b"wire": b"1", b"head": b"{}"},
    "not UTF-8": {b"id": b"\xff\xfe", b"wire": b"1", b"head": b"\xff", b"body": b"\x00"},
    "an id that nobody knows": {b"id": b"rig.9", b"wire": b"1", b"head": b"{}", b"body": b""},
    "a version that nobody knows": {b"id": b"rig.9", b"wire": b"x", b"head": b"{}", b"body": b""},
}


@pytest.mark.parametrize("fields", JUNK.values(), ids=JUNK)
@pytest.mark.parametrize("before", [True, False])
def test_an_entry_that_is_not_ours_becomes_a_dead_letter(
    library: HeldLibrary, client: Redis, fields: dict[bytes, bytes], before: bool
) -> None:
    """Counted apart, with what it held; the next request is served, whatever its place."""
    admit(library, 1)
    client.xadd(library.prefix + QUEUE, fields, id="1-5" if before else "9-9")
    admit(library, 2)
    assert take(library, "w1", 1) == [request_id(1), request_id(2)]
    [(_, letter)] = client.xrange(library.prefix + "dead")
    assert letter[b"reason"] == b"undecodable"
    assert all(part in letter[b"body"] for part in fields.values())
    assert client.hget(library.prefix + "ledger", "undecodable") == b"1"
    assert [finish(library, "w1", 1, request_id(n)) for n in (1, 2)] == ["ok", "ok"]
    assert client.exists(library.prefix + QUEUE) == 0
    assert identities(client, library)["queued"] == 0


def test_an_entry_that_names_anothers_request_is_not_taken_for_it(
    library: HeldLibrary, client: Redis
) -> None:
    """A copy of an entry in another place is foreign; the request itself is granted once."""
    admit(library, 1)
    [(_, fields)] = client.xrange(library.prefix + QUEUE)
    client.xadd(library.prefix + QUEUE, fields, id="5-0")
    admit(library, 2)
    assert take(library, "w1", 1) == [request_id(1), request_id(2)]
    assert client.xlen(library.prefix + "dead") == 1
    assert [finish(library, "w1", 1, request_id(n)) for n in (1, 2)] == ["ok", "ok"]
    check_empty(client, library)


def test_a_deleted_stream_costs_what_it_held_and_no_more(
    library: HeldLibrary, client: Redis
) -> None:
    """New requests are served at once; what was lost is told, counted, and no limit keeps it."""
    for number in range(3):
        admit(library, number)
    take(library, "w1", 1, count=1)
    client.delete(library.prefix + QUEUE)
    admit(library, 3)
    assert take(library, "w2", 1) == [request_id(3)]
    assert finish(library, "w2", 1, request_id(3)) == "ok"
    sweep_long(library)
    states = [client.hget(library.prefix + f"request:{request_id(n)}", "state") for n in range(3)]
    assert states == [b"dead"] * 3
    check_empty(client, library)


def test_a_destroyed_group_is_made_anew_and_loses_nothing(
    library: HeldLibrary, client: Redis
) -> None:
    """Running ones go on under their leases and keep their payload; waiting ones are served."""
    for number in range(4):
        admit(library, number)
    take(library, "w1", 1, count=2)
    release(library, "w1", 1, request_id(1), "crashed")
    client.xgroup_destroy(library.prefix + QUEUE, "workers")
    assert sorted(take(library, "w2", 1)) == [request_id(n) for n in (1, 2, 3)]
    assert client.xlen(library.prefix + "dead") == 0
    rows = client.xpending_range(library.prefix + QUEUE, "workers", "-", "+", 10)
    assert {row["consumer"] for row in rows} == {b"w1", b"w2"}
    assert finish(library, "w1", 1, request_id(0)) == "ok"
    for number in (1, 2, 3):
        assert finish(library, "w2", 1, request_id(number)) == "ok"
    check_empty(client, library)


def test_a_group_that_is_made_anew_reads_from_the_beginning(
    library: HeldLibrary, client: Redis
) -> None:
    """What was there before it is served by the next take, whatever the audit does later."""
    for number in range(3):
        admit(library, number)
    client.xgroup_destroy(library.prefix + QUEUE, "workers")
    assert take(library, "w1", 1) == [request_id(n) for n in range(3)]


def test_deleted_entries_are_lost_loudly(library: HeldLibrary, client: Redis) -> None:
    """Waiting, given back or crashed: they become dead letters, the rest is served."""
    for number in range(5):
        admit(library, number)
    take(library, "w1", 1, count=2)
    release(library, "w1", 1, request_id(0), "blameless")
    release(library, "w1", 1, request_id(1), "crashed")
    for entry in ("1-0", "2-0", "3-0"):
        client.xdel(library.prefix + QUEUE, entry)
    assert take(library, "w2", 1) == [request_id(3), request_id(4)]
    assert [finish(library, "w2", 1, request_id(n)) for n in (3, 4)] == ["ok", "ok"]
    sweep_long(library)
    letters = [letter for _, letter in client.xrange(library.prefix + "dead")]
    assert sorted(letter[b"id"].decode() for letter in letters) == [request_id(n) for n in range(3)]
    assert {letter[b"reason"] for letter in letters} == {b"lost"}
    check_empty(client, library)


def test_a_row_that_foreign_hands_acknowledged_is_made_anew(
    library: HeldLibrary, client: Redis
) -> None:
    """Given back, delayed or crashed, it would never be read again though its entry is there."""
    blames = ("blameless", "attempt", "crashed")
    for number in (1, 2, 3):
        admit(library, number)
    take(library, "w1", 1)
    for number, blame in enumerate(blames, 1):
        release(library, "w1", 1, request_id(number), blame)
        client.xack(library.prefix + QUEUE, "workers", f"{number}-0")
    sweep_long(library)
    names = take(library, "w2", 1)
    assert sorted(names) == [request_id(n) for n in (1, 2, 3)]
    assert [finish(library, "w2", 1, name) for name in names] == ["ok"] * 3
    check_empty(client, library)


def test_bytes_of_lost_requests_do_not_stay_with_their_tenant(
    library: HeldLibrary, client: Redis
) -> None:
    """Its limit would shrink for ever."""
    admit(library, 1)
    admit(library, 2)
    client.xdel(library.prefix + QUEUE, "1-0")
    sweep_long(library)
    assert take(library, "w1", 1) == [request_id(2)]
    assert client.zscore(library.prefix + "sizes:normal", "normal:ann") is None


def release(library: HeldLibrary, worker: str, call: int, name: str, blame: str) -> None:
    row = [name, call, blame, 0, 0, 0, 0, "engine", "{}", ""]
    assert library.fcall("release", worker, 1, *row) == [b"queued"]


def sweep_long(library: HeldLibrary) -> None:
    """Sweeps for so long that each audit and reclaim has come by."""
    for _ in range(60):
        library.now_ms += 1_000
        library.fcall("sweep", 0)


def identities(client: Redis, library: HeldLibrary) -> dict[str, int]:
    clock = client.hgetall(library.prefix + "clock")
    return {name: int(clock.get(name.encode(), 0)) for name in ("queued", "running")}


def check_empty(client: Redis, library: HeldLibrary) -> None:
    """Nothing is left of work: no index holds anything, and all that came is accounted for."""
    indexes = ("queue", "waiting", "ready", "starts", "depth", "sizes", "returned", "suspects",
               "flows", "leases", "delayed", "deadlines")  # fmt: skip
    keys = [row[0].decode() for row in raw_rows(client, library.pool)]
    assert [key for key in keys if key.startswith(indexes)] == []
    assert identities(client, library) == {"queued": 0, "running": 0}
    ledger = {name: int(value) for name, value in client.hgetall(library.prefix + "ledger").items()}
    ended = sum(ledger.values()) - ledger[b"accepted"] - ledger.get(b"undecodable", 0)
    assert ledger[b"accepted"] == ended
