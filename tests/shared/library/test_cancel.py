"""cancel: queued and running requests end at once."""

from __future__ import annotations

import pytest
from tests.model.hold import Emission
from tests.shared.library.rig import Rig, done, given_back, plain, request_id, room


@pytest.mark.parametrize("place", ["waiting", "returned", "delayed", "suspect", "running"])
def test_a_request_is_cancelled_wherever_it_is(rig: Rig, place: str) -> None:
    """One terminal record, nothing left in any index, the watchers told."""
    blames = {"returned": "blameless", "delayed": "attempt", "suspect": "crashed"}
    rig.open_inbox("r1.1")
    rig.admit([plain(1), plain(2)], inbox="r1.1")
    if place != "waiting":
        rig.take(room("w1", 1, count=1))
    if place in blames:
        rig.release("w1", [given_back(1, 1, blames[place])])
    assert rig.cancel(request_id(1)) == b"cancelled"
    assert rig.cancel(request_id(1)) == b"cancelled"
    rig.check()
    assert rig.oracle.inboxes["r1.1"][-1] == request_id(1)
    rig.take(room("w1", 2))
    rig.finish("w1", [done(2, 2)])
    rig.check()
    assert rig.client.keys(rig.library.prefix + "queue:*") == []


def test_a_running_one_costs_what_it_emitted_so_far(rig: Rig) -> None:
    rig.admit([plain(1, stream=1, estimate=1_000), plain(2)])
    rig.take(room("w1", 1, count=1))
    rig.emit("w1", [Emission(request_id(1), 1, 0, (4, 0, 3), ((b"a", b""),))])
    rig.cancel(request_id(1))
    rig.check()
    assert rig.oracle.requests[request_id(1)].charged == 10


def test_a_request_that_has_ended_keeps_its_state(rig: Rig) -> None:
    rig.admit([plain(1)])
    rig.take(room("w1", 1))
    rig.finish("w1", [done(1, 1)])
    assert rig.cancel(request_id(1)) == b"done"
    rig.check()


def test_another_tenants_request_is_not_found(rig: Rig) -> None:
    rig.admit([plain(1)])
    assert rig.cancel(request_id(1), "bob") == b""
    rig.show(request_id(1), "bob")
    assert rig.cancel(request_id(9)) == b""
    assert rig.cancel(request_id(1), "ann") == b"cancelled"
    rig.check()
