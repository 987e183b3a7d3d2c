"""renew: the lease runs anew, and what was used beyond the charge is charged."""

from __future__ import annotations

from tests.model.hold import Held
from tests.shared.library.rig import Rig, given_back, plain, request_id, room


def test_a_renewed_lease_lives_for_ever(rig: Rig) -> None:
    """Ten leases long: one take, no crash."""
    rig.admit([plain(1, timeout=10_000_000)])
    rig.take(room("w1", 1))
    for n in range(30):
        rig.sweep_for(5)
        assert rig.renew("w1", [Held(request_id(1), 1, (3, 0, n))]) == [b"ok"]
    rig.check()
    assert (
        rig.oracle.requests[request_id(1)].takes,
        rig.oracle.requests[request_id(1)].crashes,
    ) == (1, 0)


def test_a_lease_that_ran_out_lives_on_until_it_is_taken_back(rig: Rig) -> None:
    """The record says who holds it, not the clock."""
    rig.admit([plain(1)])
    rig.take(room("w1", 1))
    rig.pass_time(20_000)
    assert rig.renew("w1", [Held(request_id(1), 1)]) == [b"ok"]
    rig.check()


def test_who_lost_it_learns_so_and_changes_nothing(rig: Rig) -> None:
    """Another worker, another call of the same worker, an end, an unknown id."""
    rig.admit([plain(1), plain(2)])
    rig.take(room("w1", 1))
    rig.release("w1", [given_back(1, 1, "blameless")])
    rig.take(room("w2", 7))
    rig.cancel(request_id(2))
    for worker, call, number in (("w1", 1, 1), ("w2", 1, 1), ("w1", 1, 2), ("w1", 1, 9)):
        assert rig.renew(worker, [Held(request_id(number), call, (9, 9, 900))]) == [b"lost"]
    rig.check()


def test_more_used_than_charged_is_charged_at_once(rig: Rig) -> None:
    """A tenant always longer than estimated does not gain by it while it runs."""
    rig.admit([plain(1, estimate=10), plain(2)])
    rig.take(room("w1", 1, count=1))
    before = rig.oracle.class_state("normal").flows["ann"].f
    rig.renew("w1", [Held(request_id(1), 1, (100, 0, 500))])
    after = rig.oracle.class_state("normal").flows["ann"].f
    assert before is not None and after is not None and after > before + 1_000
    rig.renew("w1", [Held(request_id(1), 1, (100, 0, 400))])
    assert rig.oracle.class_state("normal").flows["ann"].f == after
    rig.check()
