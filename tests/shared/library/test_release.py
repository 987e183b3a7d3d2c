"""release: given back with place and arrival, charged for what was used, blamed as told."""

from __future__ import annotations

import pytest
from tests.model.hold import Emission
from tests.shared.library.rig import Rig, given_back, plain, request_id, room


def test_thirty_restarts_burn_no_attempt(rig: Rig) -> None:
    rig.admit([plain(1)])
    for call in range(1, 31):
        rig.take(room("w1", call))
        assert rig.release("w1", [given_back(1, call, "blameless")]) == [b"queued"]
    rig.check()
    one = rig.oracle.requests[request_id(1)]
    assert (one.takes, one.attempts, one.crashes) == (30, 0, 0)


def test_a_release_half_way_is_charged_what_it_used(rig: Rig) -> None:
    """The rest of the charge comes back, and the next take adds only what is missing."""
    rig.admit([plain(1, estimate=100)])
    rig.take(room("w1", 1))
    rig.release("w1", [given_back(1, 1, "blameless")])
    assert rig.oracle.requests[request_id(1)].charged == 7
    rig.take(room("w1", 2))
    assert rig.oracle.requests[request_id(1)].charged == 200.5
    rig.check()


def test_attempts_wait_longer_each_time_and_keep_their_arrival(rig: Rig) -> None:
    """1 s, 2 s, then the engine's answer is the result; never before it is due, and ahead of what
    came later."""
    rig.admit([plain(1), plain(2)])
    for call, wait in ((1, 1_000), (2, 2_000)):
        rows = rig.take(room("w1", call, count=1))[0]
        assert rows[0][0] == request_id(1).encode()
        rig.release("w1", [given_back(1, call, "attempt")])
        rig.pass_time(wait - 1)
        rig.sweep(forced=True)
        assert rig.oracle.requests[request_id(1)].place == "delayed"
        rig.pass_time(1)
        rig.sweep(forced=True)
    rig.take(room("w1", 3, count=1))
    assert rig.release("w1", [given_back(1, 3, "attempt")]) == [b"failed"]
    rig.check()
    assert rig.oracle.requests[request_id(1)].result == ({"state": "failed", "status": 500}, b"no")


@pytest.mark.parametrize(("jitter", "due"), [(-1, 800), (0.5, 1_100), (1, 1_200), (9, 1_200)])
def test_jitter_spreads_the_delay(rig: Rig, jitter: float, due: int) -> None:
    rig.admit([plain(1)])
    rig.take(room("w1", 1))
    rig.release("w1", [given_back(1, 1, "attempt", jitter)])
    rig.check()
    assert rig.oracle.requests[request_id(1)].due == rig.oracle.now + due


def test_a_repeated_release_is_lost(rig: Rig) -> None:
    """It blames and delays nobody twice."""
    rig.admit([plain(1)])
    rig.take(room("w1", 1))
    assert rig.release("w1", [given_back(1, 1, "attempt")]) == [b"queued"]
    assert rig.release("w1", [given_back(1, 1, "attempt")]) == [b"lost"]
    rig.check()


def test_a_last_answer_that_is_too_large_is_not_stored(rig: Rig) -> None:
    """What an engine says with its error is bounded as any answer is, beside what was emitted."""
    rig.change(attempts=1, result_bytes=20)
    rig.admit([plain(1, stream=1), plain(2)])
    rig.take(room("w1", 1))
    rig.emit("w1", [Emission(request_id(1), 1, 0, (3, 0, 1), ((b"nineteen bytes long", b""),))])
    words = rig.release("w1", [given_back(1, 1, "attempt"), given_back(2, 1, "attempt")])
    assert words == [b"failed", b"failed"]
    rig.check()
    reasons = [one.reason for one in rig.oracle.requests.values()]
    assert reasons == ["result_too_large", "engine"]


def test_a_queue_drains_once_by_each_request(rig: Rig) -> None:
    """Grants that are given back and made again promise no faster drain to who is refused."""
    rig.admit([plain(1)])
    rig.take(room("w1", 1))
    drained = rig.oracle.rates["pool"]
    for call in range(2, 12):
        rig.release("w1", [given_back(1, call - 1, "blameless")])
        rig.take(room("w1", call))
    rig.check()
    assert rig.oracle.rates["pool"] == drained


@pytest.mark.parametrize("blame", ["blameless", "attempt", "crashed"])
def test_watchers_hear_of_it_and_counts_follow(rig: Rig, blame: str) -> None:
    """In every way out, running is what runs."""
    rig.open_inbox("r1.1")
    rig.admit([plain(1)], inbox="r1.1")
    rig.take(room("w1", 1))
    rig.release("w1", [given_back(1, 1, blame)])
    rig.check()
    assert rig.oracle.inboxes["r1.1"] == [request_id(1)]
