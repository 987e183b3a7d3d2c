"""Operators: settings, requeue, dead letters, orders; and a pool's foundation."""

from __future__ import annotations

import json

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from tests.shared.library.driver import HeldLibrary
from tests.shared.library.rig import POOL, Rig, given_back, plain, request_id, room

from forebay_shared.settings import PoolSettings


def test_a_pool_is_founded_once(library: HeldLibrary, client: Redis) -> None:
    """The settings of who came first stay."""
    other = PoolSettings(depth=7).stored()
    assert library.fcall("found", other) == b"ok"
    assert library.fcall("settings") == [PoolSettings().stored().encode(), b"1"]


def test_settings_change_only_over_what_their_author_read(rig: Rig) -> None:
    wanted = rig.oracle.settings.model_copy(update={"depth": 7})
    assert rig.configure(wanted, 1) == [b"ok", 2]
    assert rig.configure(wanted, 1) == [b"changed", 2]
    rig.check()


def test_a_class_with_requests_stays(rig: Rig) -> None:
    """Queued or running; once they are gone it may go."""
    rig.admit([plain(1, "low")])
    classes = tuple(one for one in rig.oracle.settings.classes if one.name != "low")
    wanted = rig.oracle.settings.model_copy(update={"classes": classes})
    assert rig.configure(wanted, 1) == [b"used", b"low"]
    rig.take(room("w1", 1))
    assert rig.configure(wanted, 1) == [b"used", b"low"]
    rig.cancel(request_id(1))
    assert rig.configure(wanted, 1) == [b"ok", 2]
    rig.check()


@pytest.mark.parametrize("text", ["nonsense", "null", "5", "[]", "{}", '{"classes":[]}'])
def test_settings_that_are_none_are_refused_whole(library: HeldLibrary, text: str) -> None:
    """A pool with broken settings would serve nobody, its repair included."""
    with pytest.raises(ResponseError):
        library.fcall("configure", text, 1)
    assert library.fcall("settings")[1] == b"1"


def dead_letters(rig: Rig, *numbers: int) -> None:
    """Requests that crash alone, two solo crashes each."""
    for number in numbers:
        rig.admit([plain(number, body=b"poison", weight=3, stream=1)])
        for call in (1, 2, 3):
            rig.take(room(f"w{number}", call, slots=1))
            rig.release(f"w{number}", [given_back(number, call, "crashed")])
    assert rig.oracle.ledger["dead"] == len(numbers)


def test_a_dead_letter_is_admitted_anew_beyond_the_limits(rig: Rig) -> None:
    """Once; with all that it was, also its flow's weight. Letter and dead record stay."""
    dead_letters(rig, 1)
    rig.change(depth=1)
    rig.admit([plain(2)])
    assert rig.requeue(0, request_id(3)) == b"ok"
    assert rig.requeue(0, request_id(3)) == b"exists"
    rig.check()
    anew = rig.oracle.requests[request_id(3)]
    assert (anew.body, anew.stream, anew.flow_weight) == (b"poison", 1, 3)
    assert (anew.retry_of, rig.oracle.requests[request_id(1)].state) == (request_id(1), "dead")


def test_a_letter_that_does_not_exist_or_holds_nothing(rig: Rig) -> None:
    assert rig.requeue(0, request_id(1)) == b"none"
    rig.client.xadd(rig.library.prefix + "dead", {"head": "", "meta": "", "class": "normal"})
    letter = rig.client.xrange(rig.library.prefix + "dead")[0][0]
    assert rig.library.fcall("requeue", letter, request_id(1)) == b"payload"


@pytest.mark.parametrize("bound", [{"dead_count": 2}, {"dead_bytes": 20}])
def test_dead_letters_are_bounded_and_counts_stay(rig: Rig, bound: dict[str, int]) -> None:
    """By count and by bytes; the oldest go first."""
    rig.change(**bound)
    dead_letters(rig, 1, 2, 3, 4)
    rig.check()
    assert [letter.id for letter in rig.oracle.dead] == [request_id(3), request_id(4)]


def test_an_order_waits_for_its_worker_for_a_minute(rig: Rig) -> None:
    rig.order("w1", "drain")
    rig.check()
    assert 55_000 < rig.client.pttl(rig.library.prefix + "control:w1") <= 60_000


def test_status_tells_the_pool_as_lists_and_numbers(rig: Rig) -> None:
    """Also an empty pool: a list without members is a list."""
    empty = json.loads(rig.library.fcall("status"))
    assert (empty["workers"], empty["models"], empty["queued"]) == ([], [], 0)
    rig.admit([plain(1), plain(2, "high")])
    rig.register("w1", "serving", 4, 1, (["normal"], ["m"]))
    rig.take(room("w1", 1, count=1))
    status = json.loads(rig.library.fcall("status"))
    assert (status["queued"], status["running"], status["slots"]) == (1, 1, 4)
    assert status["ledger"]["accepted"] == 2
    assert [one["id"] for one in status["workers"]] == ["w1"]
    assert {one["name"]: one["queued"] for one in status["classes"]}["normal"] == 1
    rig.check()


def test_slots_are_those_of_the_registered(rig: Rig) -> None:
    """They follow a worker that learns, leaves or comes back."""
    served = (["normal"], ["m"])
    for worker, slots in (("w1", 8), ("w2", 4), ("w1", 3), ("w1", 3)):
        rig.register(worker, "serving", slots, 0, served)
    assert rig.oracle.slots == 7
    rig.leave("w1")
    rig.leave("w1")
    rig.check()
    assert rig.oracle.slots == 4


def test_the_pool_name_is_in_no_other_key(client: Redis) -> None:
    """Two pools on one server do not meet."""
    one, two = (HeldLibrary(client, name, PoolSettings()) for name in (POOL, "other"))
    one.fcall("found", one.text)
    two.fcall("found", two.text)
    two.fcall("switch", "1", "1")
    assert client.keys(one.prefix + "clock") == []
