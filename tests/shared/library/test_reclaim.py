"""reclaim: leases that ran out, each once, and nobody blamed for an outage."""

from __future__ import annotations

import random

import pytest
from redis import Redis
from tests.model.hold import Held
from tests.shared.library.driver import HeldLibrary, admit, take
from tests.shared.library.rig import Rig, done, plain, request_id, room


def test_what_a_dead_worker_held_runs_again_within_lease_and_sweep(rig: Rig) -> None:
    """20 s, with no operator; its crash is noted, its arrival kept."""
    rig.admit([plain(n) for n in range(3)])
    rig.sweep_for(20)
    rig.take(room("w1", 1, count=2))
    rig.sweep_for(20)
    rig.check()
    assert rig.oracle.running() == 0
    rows = rig.take(room("w2", 1))[0]
    assert sorted(row[0].decode() for row in rows) == [request_id(n) for n in range(3)]
    rig.check()


def test_a_living_worker_keeps_what_a_dead_one_loses(rig: Rig) -> None:
    rig.admit([plain(1), plain(2)])
    rig.sweep_for(20)
    rig.take(room("w1", 1, count=1))
    rig.take(room("w2", 1, count=1))
    for _ in range(5):
        rig.sweep_for(4)
        rig.renew("w2", [Held(request_id(1), 1), Held(request_id(2), 1)])
    rig.check()
    assert [one.state for one in rig.oracle.requests.values()] == ["queued", "running"]


def test_many_sweepers_take_each_lease_back_once(rig: Rig) -> None:
    """Five processes offer each tick; one crash is counted."""
    rig.admit([plain(1)])
    rig.sweep_for(20)
    rig.take(room("w1", 1))
    for _ in range(20):
        rig.pass_time(1_000)
        for _ in range(5):
            rig.sweep()
    rig.check()
    assert rig.oracle.requests[request_id(1)].crashes == 1


def test_all_expired_leases_are_found_behind_many_living_ones(
    library: HeldLibrary, client: Redis
) -> None:
    """In one pass of repeated sweeps, each of a bounded number."""
    for number in range(1_000):
        admit(library, number, tenant=f"t{number % 7}")
    sweep_for(library, 20)
    for call in range(1, 11):
        take(library, "w1", call)
    sweep_for(library, 14)
    for at in range(0, 900, 100):
        rows = [[request_id(n), call_of(client, library, n), 0, 0, 0] for n in range(at, at + 100)]
        library.fcall("renew", "w1", 100, *(value for row in rows for value in row))
    sweep_for(library, 6)
    while sweep(library, 1)[-1]:
        pass
    running = client.zrange(library.prefix + "leases", 0, -1)
    assert len(running) == 900
    assert client.zcard(library.prefix + "suspects:normal") == 100


def sweep(library: HeldLibrary, forced: int) -> list[int]:
    answer: list[int] = library.fcall("sweep", forced)
    return answer


def sweep_for(library: HeldLibrary, ticks: int) -> None:
    for _ in range(ticks):
        library.now_ms += 1_000
        sweep(library, 0)


def call_of(client: Redis, library: HeldLibrary, number: int) -> str:
    lease = client.hget(library.prefix + f"request:{request_id(number)}", "lease") or b""
    return lease.decode().partition("/")[2]


def test_an_outage_blames_nobody(rig: Rig) -> None:
    """Nobody swept for a while, so nobody could renew: one lease of quiet, then as usual."""
    rig.admit([plain(1), plain(2)])
    rig.sweep_for(20)
    rig.take(room("w1", 1))
    rig.pass_time(60_000)
    rig.sweep()
    rig.sweep_for(14)
    rig.renew("w1", [Held(request_id(1), 1)])
    rig.sweep_for(6)
    rig.check()
    assert [one.crashes for one in rig.oracle.requests.values()] == [0, 1]


@pytest.mark.parametrize("outages", [1, 2, 3])
def test_outages_in_a_row_blame_nobody(rig: Rig, outages: int) -> None:
    """Each begins the quiet anew, as long as they are few; who is dead is found after them."""
    rig.admit([plain(1), plain(2)])
    rig.sweep_for(20)
    rig.take(room("w1", 1))
    for _ in range(outages):
        rig.pass_time(60_000)
        rig.sweep()
        rig.sweep_for(5)
        rig.check()
    rig.renew("w1", [Held(request_id(1), 1)])
    rig.sweep_for(14)
    rig.check()
    assert [one.crashes for one in rig.oracle.requests.values()] == [0, 1]


def test_who_comes_first_after_an_outage_matters_not(rig: Rig) -> None:
    """Where it is a worker that renews, the others still get their quiet."""
    rig.admit([plain(1), plain(2)])
    rig.sweep_for(20)
    rig.take(room("w1", 1, count=1))
    rig.take(room("w2", 1, count=1))
    rig.pass_time(60_000)
    rig.renew("w1", [Held(request_id(1), 1)])
    rig.sweep()
    rig.sweep_for(5)
    assert rig.renew("w2", [Held(request_id(2), 1)]) == [b"ok"]
    rig.check()
    assert [one.crashes for one in rig.oracle.requests.values()] == [0, 0]


@pytest.mark.parametrize("gap_s", [4, 6, 14, 16, 60, 3_600])
def test_recovery_goes_on_however_seldom_somebody_sweeps(rig: Rig, gap_s: int) -> None:
    """Nobody but one sweeper, whose gaps look like outages each time: the fourth finds them."""
    rig.admit([plain(1, timeout=90_000_000)])
    rig.sweep_for(20)
    rig.take(room("w1", 1))
    gaps = 0
    while rig.oracle.running():
        rig.pass_time(gap_s * 1_000)
        rig.sweep()
        gaps += 1
    rig.check()
    assert gaps <= 4 + 15 / gap_s


@pytest.mark.parametrize("seed", range(5))
def test_recovery_goes_on_however_irregular_the_sweeps(rig: Rig, seed: int) -> None:
    """A worker lives on and keeps its lease; a dead one's lease is taken back, each time."""
    dice = random.Random(seed)
    rig.admit([plain(0, timeout=90_000_000)])
    rig.take(room("alive", 1))
    for number in range(1, 5):
        rig.admit([plain(number, timeout=90_000_000)])
        rig.take(room(f"w{number}", 1, slots=100, count=1))
        began, renewed = rig.oracle.now, rig.oracle.now
        while rig.oracle.running() > 1:
            rig.pass_time(dice.choice([900, 2_500, 4_000, 4_900]))
            if dice.random() < 0.5:
                rig.sweep()
            if rig.oracle.now - renewed >= 5_000:
                rig.renew("alive", [Held(request_id(0), 1)])
                renewed = rig.oracle.now
        assert rig.oracle.now - began < 75_000
        rig.cancel(request_id(number))
    rig.check()
    assert rig.oracle.requests[request_id(0)].crashes == 0


def test_a_worker_that_renews_shows_that_there_was_no_outage(rig: Rig) -> None:
    """Nobody has swept for minutes; whose lease ran out meanwhile is taken back by the first."""
    rig.admit([plain(1), plain(2)])
    rig.sweep_for(20)
    rig.take(room("w1", 1, count=1))
    rig.take(room("w2", 1, count=1))
    for _ in range(100):
        rig.pass_time(3_000)
        rig.renew("w2", [Held(request_id(2), 1)])
    rig.sweep()
    rig.check()
    assert [one.crashes for one in rig.oracle.requests.values()] == [1, 0]


def test_who_dies_in_the_midst_of_sweeping_stops_no_recovery(rig: Rig) -> None:
    """Told to go on at once, it never does: each tick takes 3 back, without a wait between."""
    rig.admit([plain(n) for n in range(60)])
    rig.sweep_for(20)
    rig.take(room("w1", 1, slots=1_000))
    left = []
    for _ in range(35):
        rig.sweep_for(1)
        left.append(rig.oracle.running())
    rig.check()
    assert [n for n in left if 0 < n < 60] == list(range(57, 0, -3))


@pytest.mark.parametrize("back_ms", [2_000, 30_000, 3_600_000])
def test_a_clock_that_went_back_stops_no_sweep(rig: Rig, back_ms: int) -> None:
    """After a failover to a server whose clock is behind: quiet for a lease, then as usual."""
    rig.admit([plain(1, timeout=90_000_000)])
    rig.sweep_for(20)
    rig.pass_time(-back_ms)
    rig.sweep()
    rig.take(room("w1", 1))
    rig.sweep_for(25)
    rig.check()
    assert rig.oracle.requests[request_id(1)].crashes == 1


def test_a_worker_that_wakes_finds_its_leases_lost(rig: Rig) -> None:
    rig.admit([plain(1)])
    rig.sweep_for(20)
    rig.take(room("w1", 1))
    rig.sweep_for(20)
    assert rig.renew("w1", [Held(request_id(1), 1)]) == [b"lost"]
    assert rig.finish("w1", [done(1, 1)]) == [b"lost"]
    rig.take(room("w2", 1))
    assert rig.finish("w1", [done(1, 1)]) == [b"lost"]
    assert rig.finish("w2", [done(1, 1)]) == [b"ok"]
    rig.check()


def test_a_request_that_kills_each_worker_ends_as_a_dead_letter(rig: Rig) -> None:
    """With what it was, so that it can be read and admitted anew."""
    rig.admit([plain(1, body=b"poison", timeout=3_600_000)])
    rig.sweep_for(20)
    call = 0
    while rig.oracle.requests[request_id(1)].live:
        call += 1
        rig.take(room(f"w{call}", 1, slots=4))
        rig.sweep_for(20)
    rig.check()
    assert call == 3
    letter = rig.oracle.dead[0]
    assert (letter.reason, letter.body) == ("crash_loop", b"poison")
