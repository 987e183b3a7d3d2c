"""Which slow commands a processor that stood still explains."""

from __future__ import annotations

import pytest
from tests.soak.stalls import Slow, Stall, explained, summary

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


def test_a_stall_excuses_once() -> None:
    """Of two functions of one look the shorter; a command within a function goes with it."""
    other = Slow("forebay_admit", 0.0062, before=10.0, after=10.02)
    inner = Slow("HSET", 0.0055, before=10.0, after=10.02)
    later = Slow("forebay_take", 0.006, before=11.0, after=11.02)
    found = [other, TOOK_6_MS, inner, later]
    assert explained(found, [Stall(10.005, 10.007)]) == [inner, TOOK_6_MS]
    assert explained(found, [Stall(10.005, 10.0075)]) == [inner, TOOK_6_MS, other]


def test_the_summary_counts_by_name() -> None:
    found = [TOOK_6_MS, TOOK_6_MS, Slow("HSET", 0.0071, 10.0, 10.02)]
    names = {"forebay_take": 2, "HSET": 1}
    assert summary(found) == {"count": 3, "most_ms": 7.1, "names": names}
