"""Operators: settings, orders, status; and a pool's foundation."""

from __future__ import annotations

import json

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from tests.shared.library.driver import HeldLibrary
from tests.shared.library.rig import POOL, Rig, plain, request_id, room

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
