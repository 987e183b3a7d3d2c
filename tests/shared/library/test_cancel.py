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


def test_a_reader_that_leaves_ends_a_request_that_nobody_else_reads(rig: Rig) -> None:
    """Another replica that lives reads on; one whose inbox has expired reads nothing."""
    for name in ("r1.1", "r2.1", "r3.1"):
        rig.open_inbox(name)
    rig.admit([plain(1)], inbox="r1.1")
    rig.reply("r2.1", [(request_id(1), -1)])
    rig.reply("r3.1", [(request_id(1), -1)])
    assert rig.cancel(request_id(1), "ann", "r1.1") == b"queued"
    rig.lose_inbox("r3.1")
    assert rig.cancel(request_id(1), "ann", "r2.1") == b"cancelled"
    rig.check()


def test_an_asynchronous_request_goes_on_without_readers(rig: Rig) -> None:
    """Also one that became so by a repeat under its key; whoever owns it may still cancel it."""
    rig.admit([plain(1, idempotency="k", fingerprint="f")], inbox="r1.1")
    rig.admit([plain(2, idempotency="k", fingerprint="f", detached=1)])
    assert rig.cancel(request_id(1), "ann", "r1.1") == b"queued"
    rig.check()
    assert rig.cancel(request_id(1), "ann") == b"cancelled"
    rig.check()


def test_who_repeats_a_request_by_its_key_reads_it_along(rig: Rig) -> None:
    """From the very step of the repeat: no news is lost between."""
    rig.open_inbox("r2.1")
    rig.admit([plain(1, idempotency="k", fingerprint="f")], inbox="r1.1")
    rig.admit([plain(2, idempotency="k", fingerprint="f")], inbox="r2.1")
    rig.take(room("w1", 1))
    rig.finish("w1", [done(1, 1)])
    rig.check()
    assert rig.oracle.inboxes["r2.1"] == [request_id(1)]


def test_an_admit_in_doubt_is_forestalled(rig: Rig) -> None:
    """It comes after its cancel and stores nothing; the cancel may be repeated."""
    for _ in range(2):
        assert rig.cancel(request_id(1), "ann", in_doubt=True) == b"cancelled"
    assert rig.admit([plain(1)]) == [[b"same", request_id(1).encode(), b"cancelled"]]
    rig.show(request_id(1))
    rig.reply("r1.1", [(request_id(1), 0)])
    rig.check()
    assert rig.oracle.ledger["accepted"] == 0
    rig.pass_time(900_000)
    rig.check()
    assert rig.oracle.requests == {}
