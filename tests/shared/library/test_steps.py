"""A process may die behind any step, answered or not; the others bring all to its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis
from tests.model.dump import untouched
from tests.model.hold import Emission, Held
from tests.shared.library.driver import HeldLibrary, admit, finish, take
from tests.shared.library.rig import POOL, Rig, done, given_back, plain, request_id, room

Step = Callable[[Rig], object]

ONE, TWO = request_id(1), request_id(2)
CHUNKS = ((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
WORKER: list[tuple[str, Step]] = [
    ("nothing", lambda rig: None),
    ("register", lambda rig: rig.register("w1", "serving", 4, 0, (["normal"], ["m"]))),
    ("take", lambda rig: rig.take(room("w1", 1))),
    ("first emit", lambda rig: rig.emit("w1", [Emission(ONE, 1, 0, (3, 0, 1), CHUNKS[:1])])),
    ("renew", lambda rig: rig.renew("w1", [Held(ONE, 1, (3, 0, 1)), Held(TWO, 1)])),
    ("emit", lambda rig: rig.emit("w1", [Emission(ONE, 1, 1, (3, 0, 2), CHUNKS[1:2])])),
    ("finish of one", lambda rig: rig.finish("w1", [done(1, 1, offset=2, chunks=CHUNKS[2:])])),
    ("release", lambda rig: rig.release("w1", [given_back(2, 1, "attempt")])),
    ("leave", lambda rig: rig.leave("w1")),
]


@pytest.mark.parametrize("last", range(len(WORKER)), ids=[name for name, _ in WORKER])
def test_a_worker_may_die_behind_any_step(rig: Rig, last: int) -> None:
    """Its requests end once, done; what was delivered stays, and the next goes on behind it."""
    rig.sweep_for(20)
    rig.admit([plain(1, stream=1, timeout=3_600_000), plain(2, timeout=3_600_000)])
    for _, step in WORKER[: last + 1]:
        step(rig)
    rig.check()
    delivered = rig.oracle.requests[ONE].offset
    end_all(rig)
    assert [one.state for one in rig.oracle.requests.values()] == ["done", "done"]
    assert rig.oracle.requests[ONE].chunks == list(CHUNKS)
    assert rig.oracle.requests[ONE].offset == 3 >= delivered
    assert "w1" not in rig.oracle.registry


def end_all(rig: Rig) -> None:
    """What another worker does: it sweeps, takes, goes on behind what was delivered, finishes."""
    for call in range(1, 60):
        if not any(rig.oracle.live()) and "w1" not in rig.oracle.registry:
            break
        rig.sweep_for(1)
        for row in rig.take(room("w2", call, slots=4))[0]:
            number, offset = int(row[0][-26:]), row[7]
            rest = CHUNKS[offset:] if number == 1 else ()
            rig.finish("w2", [done(number, call, offset=offset, chunks=rest)])
        rig.check()


PRODUCER: list[tuple[str, Step]] = [
    ("nothing", lambda rig: None),
    ("inbox", lambda rig: rig.open_inbox("r1.1")),
    ("admit", lambda rig: rig.admit([plain(1, detached=1, stream=1)], inbox="r1.1")),
    ("reply", lambda rig: rig.reply("r1.1", [(ONE, 0)])),
    ("cancel of another", lambda rig: rig.cancel(TWO, "", "r1.1", True)),
]


@pytest.mark.parametrize("last", range(len(PRODUCER)), ids=[name for name, _ in PRODUCER])
def test_a_producer_may_die_behind_any_step(rig: Rig, last: int) -> None:
    """What it admitted ends, and another replica has the answer; what it did not, never was."""
    for _, step in PRODUCER[: last + 1]:
        step(rig)
    rig.lose_inbox("r1.1")
    end_all(rig)
    stored = last >= 2
    assert rig.oracle.ledger["done"] == rig.oracle.ledger["accepted"] == int(stored)
    rig.open_inbox("r2.1")
    rig.reply("r2.1", [(ONE, 0)])
    rig.check()


@pytest.mark.parametrize("step", ["admit", "take", "finish", "finish_take", "release", "emit"])
def test_a_call_whose_answer_was_lost_may_be_made_again(rig: Rig, step: str) -> None:
    """The second time nothing that is stored changes, but for wake-ups."""
    calls: dict[str, Step] = {
        "admit": lambda rig: rig.admit([plain(1, stream=1), plain(2)], inbox="r1.1"),
        "take": lambda rig: rig.take(room("w1", 1)),
        "emit": lambda rig: rig.emit("w1", [Emission(ONE, 1, 0, (3, 0, 1), CHUNKS)]),
        "finish": lambda rig: rig.finish("w1", [done(1, 1, offset=3)]),
        "finish_take": lambda rig: rig.finish_take([done(1, 1, offset=3)], room("w1", 2)),
        "release": lambda rig: rig.release("w1", [given_back(1, 1, "attempt")]),
    }
    before = {"admit": [], "take": ["admit"], "emit": ["admit", "take"]}
    for name in before.get(step, ["admit", "take", "emit"]):
        calls[name](rig)
    calls[step](rig)
    rig.check()
    state = without_wakeups(rig.client)
    calls[step](rig)
    rig.check()
    assert without_wakeups(rig.client) == state


def without_wakeups(client: Redis) -> dict[bytes, bytes]:
    """All that is stored but bells, news and the list of the last grants, which lives anew."""
    kinds = (b"bell:", b"inbox:")
    state = untouched(client, POOL)
    return {key: value for key, value in state.items() if not any(one in key for one in kinds)}


def snapshot(client: Redis) -> dict[bytes, bytes]:
    return untouched(client, POOL)


def fail_over(client: Redis, state: dict[bytes, bytes]) -> None:
    """The new primary knows what was replicated until then, and nothing since."""
    for key in client.keys(f"fb:{{{POOL}}}:*"):
        client.delete(key)
    for key, value in state.items():
        client.restore(key, 0, value)


def test_a_grant_that_a_failover_forgot_is_no_right(library: HeldLibrary, client: Redis) -> None:
    """Its call number is not given again: the worker counts, not Redis."""
    for number in (1, 2):
        admit(library, number)
    take(library, "w1", 1, count=1)
    known = snapshot(client)
    assert take(library, "w1", 2) == [TWO]
    fail_over(client, known)
    assert finish(library, "w1", 2, TWO) == "lost"
    assert take(library, "w2", 1) == [TWO]
    assert take(library, "w1", 3) == []
    assert finish(library, "w1", 2, TWO) == "lost"
    assert finish(library, "w2", 1, TWO) == "ok"
    assert finish(library, "w1", 1, ONE) == "ok"
    assert client.hgetall(library.prefix + "ledger")[b"done"] == b"2"


def test_an_end_that_a_failover_forgot_comes_again(library: HeldLibrary, client: Redis) -> None:
    """Its worker may write it once more while its lease is held; else the request runs again."""
    admit(library, 1)
    take(library, "w1", 1)
    known = snapshot(client)
    assert finish(library, "w1", 1, ONE) == "ok"
    fail_over(client, known)
    assert finish(library, "w1", 1, ONE) == "ok"
    assert client.hgetall(library.prefix + "ledger")[b"done"] == b"1"


def test_the_record_and_the_row_both_fence(library: HeldLibrary, client: Redis) -> None:
    """A row that names another worker refuses; one that foreign hands acknowledged does not."""
    for number in (1, 2):
        admit(library, number)
    assert take(library, "w1", 1) == [ONE, TWO]
    queue = library.prefix + "queue:normal:ann:0"
    first, second = (entry for entry, _ in client.xrange(queue))
    client.xclaim(queue, "workers", "w9", 0, [first])
    client.xack(queue, "workers", second)
    assert finish(library, "w1", 1, ONE) == "lost"
    assert finish(library, "w1", 1, TWO) == "ok"
