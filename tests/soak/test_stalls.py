"""Which slow commands a processor that stood still explains."""

from __future__ import annotations

import pytest
from tests.soak.stalls import Nap, Slow, Stall, explained, stalls_of, summary

TOOK_6_MS = Slow("forebay_take", 0.006, before=10.0, after=10.02)


@pytest.mark.parametrize(
    ("stalls", "is_explained"),
    [
        ([], False),
        ([Stall(10.001, 10.003)], True),
        ([Stall(10.001, 10.0015)], False),
        ([Stall(10.001, 10.0017), Stall(10.003, 10.0035)], True),
        ([Stall(9.995, 9.9965)], True),
        ([Stall(9.98, 9.9935)], False),
        ([Stall(10.021, 10.03)], False),
        ([Stall(10.001, 10.0017), Stall(10.0155, 10.0162)], False),
    ],
    ids=[
        *("none", "long", "short", "two short ones", "before the look", "earlier", "later"),
        "two far apart",
    ],
)
def test_a_stall_explains_what_it_can_have_met(stalls: list[Stall], is_explained: bool) -> None:
    """A command of 6 ms that lost more than one of them would else have stayed below five."""
    assert explained([TOOK_6_MS], stalls) == ([TOOK_6_MS] if is_explained else [])


def test_a_command_loses_no_more_than_it_took() -> None:
    """30 ms remain slow beside a stall of 50 ms of which they can have met 20 at most."""
    work = Slow("forebay_take", 0.030, before=10.0, after=10.02)
    assert explained([work], [Stall(10.0, 10.05)]) == []
    assert explained([work], [Stall(9.98, 10.05)]) == [work]


def test_a_slower_processor_takes_its_share() -> None:
    """At a quarter less for all of its 6 ms it would have taken 4.5, at a tenth less 5.4."""
    assert explained([TOOK_6_MS], [Stall(9.99, 10.03, 0.25)]) == [TOOK_6_MS]
    assert explained([TOOK_6_MS], [Stall(9.99, 10.03, 0.1)]) == []


def _naps(*readings_us: float, late_ms: dict[int, float] | None = None) -> list[Nap]:
    """Naps that were due each 2 ms from 1 s on."""
    late_ms = late_ms or {}
    times = [1 + 0.002 * number for number in range(len(readings_us))]
    return [
        Nap(at, at + late_ms.get(number, 0.05) / 1e3, read_us / 1e6)
        for number, (at, read_us) in enumerate(zip(times, readings_us, strict=True))
    ]


def test_a_late_nap_is_a_stall() -> None:
    assert list(stalls_of(_naps(20, 20, 20, 20))) == []
    late = stalls_of(_naps(20, 20, 20, 20, late_ms={1: 0.2, 2: 1.5}))
    assert list(late) == [Stall(1.004, pytest.approx(1.0055))]


def test_long_readings_are_a_slower_processor() -> None:
    """Two of three, measured by what most readings take: one alone may have met something short."""
    usual = [20.0] * 9
    assert list(stalls_of(_naps(*usual, 80, *usual))) == []
    assert list(stalls_of(_naps(*usual, 24, 24, 24, *usual))) == []
    first, second = stalls_of(_naps(*usual, 80, 40, *usual))
    assert first == Stall(pytest.approx(1.01605), 1.018, pytest.approx(0.5))
    assert second == Stall(pytest.approx(1.01805), 1.02, pytest.approx(0.5))


def test_the_summary_counts_by_name() -> None:
    found = [TOOK_6_MS, TOOK_6_MS, Slow("HSET", 0.0071, 10.0, 10.02)]
    names = {"forebay_take": 2, "HSET": 1}
    assert summary(found) == {"count": 3, "most_ms": 7.1, "names": names}
