"""Dead letters: kept within bounds, read in parts, admitted anew, thrown away."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from tests.model.operate import Which
from tests.shared.library.driver import Calls, HeldLibrary, run
from tests.shared.library.rig import Rig, given_back, plain, request_id, room

from forebay_shared.calls import Letter, Letters, Wanted


def kill(rig: Rig, *numbers: int, class_name: str = "normal", tenant: str = "ann") -> None:
    """Requests that crash alone, two solo crashes each."""
    before = rig.oracle.ledger["dead"]
    for number in numbers:
        body = b"poison %d" % number
        rig.admit([plain(number, class_name, tenant, body=body, weight=3, stream=1)])
        for call in (1, 2, 3):
            rig.take(room(f"w{number}", call, slots=1))
            rig.release(f"w{number}", [given_back(number, call, "crashed")])
    assert rig.oracle.ledger["dead"] == before + len(numbers)


@pytest.mark.parametrize("bound", [{"dead_count": 2}, {"dead_bytes": 20}])
def test_they_are_bounded_and_counts_stay(rig: Rig, bound: dict[str, int]) -> None:
    """By count and by bytes; the oldest go first."""
    rig.change(**bound)
    kill(rig, 1, 2, 3, 4)
    rig.check()
    assert [letter.id for letter in rig.oracle.dead] == [request_id(3), request_id(4)]


# Admitted anew ------------------------------------------------------------------------------------


def test_one_is_admitted_anew_beyond_the_limits(rig: Rig) -> None:
    """With all that it was, also its flow's weight. Letter and dead record stay."""
    kill(rig, 1)
    rig.change(depth=1)
    rig.admit([plain(2)])
    assert rig.requeue(0) == [b"ok", f"{request_id(1)}.1".encode()]
    rig.check()
    anew = rig.oracle.requests[f"{request_id(1)}.1"]
    assert (anew.body, anew.stream, anew.flow_weight) == (b"poison 1", 1, 3)
    assert (anew.retry_of, rig.oracle.requests[request_id(1)].state) == (request_id(1), "dead")


def test_a_repeated_requeue_admits_nothing_twice(rig: Rig) -> None:
    """Its answer was lost; once the first has ended, the letter may be admitted again."""
    kill(rig, 1)
    name = f"{request_id(1)}.1".encode()
    assert rig.requeue(0) == [b"ok", name]
    assert rig.requeue(0) == [b"live", name]
    rig.take(room("w9", 1))
    assert rig.requeue(0) == [b"live", name]
    rig.cancel(name.decode())
    assert rig.requeue(0) == [b"ok", f"{request_id(1)}.2".encode()]
    rig.check()


def test_numbers_never_repeat(rig: Rig) -> None:
    """Also where the requeue died too, and when the records are long gone."""
    kill(rig, 1)
    rig.requeue(0)
    for call in (4, 5, 6):
        rig.take(room("w1", call, slots=1))
        anew = given_back(1, call, "crashed")
        rig.release("w1", [type(anew)(f"{request_id(1)}.1", *list(vars(anew).values())[1:])])
    assert [one.id for one in rig.oracle.dead] == [request_id(1), f"{request_id(1)}.1"]
    rig.pass_time(6 * 3_600_000)
    assert rig.requeue(1)[1] == f"{request_id(1)}.2".encode()
    rig.cancel(f"{request_id(1)}.2")
    assert rig.requeue(0)[1] == f"{request_id(1)}.3".encode()
    rig.check()


def test_what_cannot_be_admitted_is_told(rig: Rig) -> None:
    """No such letter, no payload, no such class any more, a pool that drains."""
    assert rig.requeue(0) == [b"none", b""]
    kill(rig, 1, class_name="low")
    rig.switch(None, True)
    assert rig.requeue(0) == [b"draining", b""]
    rig.switch(None, False)
    classes = tuple(one for one in rig.oracle.settings.classes if one.name != "low")
    rig.change(classes=classes)
    assert rig.requeue(0) == [b"class", b"low"]
    rig.check()
    foreign = rig.client.xadd(rig.library.prefix + "dead", {"junk": "1"})
    assert rig.library.fcall("requeue", foreign) == [b"payload", b""]
    assert rig.library.fcall("requeue", "nonsense") == [b"none", b""]


# Read ---------------------------------------------------------------------------------------------


def test_they_are_found_by_what_they_are(rig: Rig) -> None:
    """By reason, class, tenant, id and age; newest first."""
    kill(rig, 1, 2)
    rig.pass_time(60_000)
    kill(rig, 3, class_name="low")
    kill(rig, 4, tenant="bob")
    assert rig.letters(Which()) == [3, 2, 1, 0]
    assert rig.letters(Which(reason="crash_loop", class_name="low")) == [2]
    assert rig.letters(Which(tenant="bob")) == [3]
    assert rig.letters(Which(id=request_id(2))) == [1]
    assert rig.letters(Which(age=60_000)) == [1, 0]
    assert rig.letters(Which(reason="lost")) == []
    assert rig.letters(Which(), most=2) == [3, 2]
    assert rig.letters(Which(), start=2) == [1, 0]
    rig.check()


def test_a_payload_is_told_only_where_it_is_asked_for(rig: Rig) -> None:
    kill(rig, 1)
    letters = Letters(rig.library)
    bare, whole = (run(first(letters, payload)) for payload in (False, True))
    assert (bare.body, whole.body, bare.size_bytes) == (b"", b"poison 1", 10)
    assert (bare.name, bare.model, bare.requeued_as) == (request_id(1), "m", "")
    rig.requeue(0)
    assert run(first(letters, False)).requeued_as == f"{request_id(1)}.1"


async def first(letters: Letters, payload: bool) -> Letter:
    return await anext(letters.each(Wanted(), payload=payload))


def store(client: Redis, library: HeldLibrary, count: int, size: int = 0) -> None:
    """Letters as the library writes them, many at once."""
    pipe = client.pipeline()
    for number in range(count):
        reason = ("crash_loop", "lost")[number % 2]
        fields = {"id": request_id(number), "reason": reason, "class": "normal", "tenant": "ann"}
        rest = {"at": library.now_ms, "size": size, "meta": "", "head": "", "body": "x" * size}
        pipe.xadd(library.prefix + "dead", fields | rest)
    pipe.hset(library.prefix + "clock", "dead_bytes", count * size)
    pipe.execute()


def test_thousands_are_read_in_parts_each_once(library: HeldLibrary, client: Redis) -> None:
    """And thrown away in parts; those that came after the first are not met."""
    store(client, library, 3_000)
    letters = Calls(library).letters
    half = [f"{request_id(n)}" for n in reversed(range(3_000)) if n % 2]
    assert run(names(letters, Wanted(reason="lost"))) == half
    start = client.xrevrange(library.prefix + "dead", count=1)[0][0].decode()
    store(client, library, 5)
    assert run(letters.purge(Wanted(reason="lost"), start=start)) == 1_500
    assert client.xlen(library.prefix + "dead") == 1_505
    assert run(letters.purge(Wanted())) == 1_505
    assert not client.exists(library.prefix + "dead")


async def names(letters: Letters, wanted: Wanted) -> list[str]:
    return [one.name async for one in letters.each(wanted)]


def test_one_call_reads_about_a_mebibyte(library: HeldLibrary, client: Redis) -> None:
    """However large they are, all are met."""
    store(client, library, 9, size=400_000)
    rows, following = library.fcall("letters", "", 100, 1, "", "", "", "", 0)
    assert (len(rows), following.startswith(b"(")) == (3, True)
    assert len(run(names(Calls(library).letters, Wanted()))) == 9


def test_one_is_found_by_its_entry(library: HeldLibrary, client: Redis) -> None:
    store(client, library, 3)
    letters = Calls(library).letters
    entry = client.xrange(library.prefix + "dead")[1][0].decode()
    found = run(letters.at(entry))
    assert found is not None and found.request_id == request_id(1)
    assert run(letters.at("5-5")) is None
    with pytest.raises(ResponseError, match="BADCALL a bad place to begin"):
        run(letters.at("nonsense"))


# Thrown away --------------------------------------------------------------------------------------


def test_purging_changes_no_count(rig: Rig) -> None:
    """The ledger still says how many died; their records stay for their readers."""
    kill(rig, 1, 2)
    rig.pass_time(60_000)
    kill(rig, 3)
    assert rig.purge(Which(age=60_000)) == [2, b""]
    rig.check()
    assert rig.purge(Which(reason="crash_loop")) == [1, b""]
    assert rig.purge(Which()) == [0, b""]
    rig.check()
    assert rig.oracle.ledger["dead"] == 3
