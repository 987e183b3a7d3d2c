"""Capacity: learned upwards until one waits in the engine, down when it is too much."""

from __future__ import annotations

import pytest

from forebay_shared.calls import Grant
from forebay_worker.capacity import FIRST, MOST, Capacity
from forebay_worker.engine import Load
from forebay_worker.runs import Runs


def load(waiting: int = 0, preemptions: int = 0, slots: int | None = None) -> Load:
    return Load(8, waiting, 0.5, preemptions, None, slots)


def test_it_grows_while_full_and_none_waits() -> None:
    """One more each poll, or 5 % once that is more."""
    capacity = Capacity()
    for _ in range(12):
        capacity.polled(load(), peak=capacity.limit)
    assert capacity.limit == FIRST + 12
    capacity.limit = 100
    capacity.polled(load(), peak=100)
    assert capacity.limit == 105


def test_it_stays_while_slots_are_free_or_one_waits() -> None:
    """Free slots teach nothing; one waiting is the aim."""
    capacity = Capacity()
    capacity.polled(load(), peak=FIRST - 1)
    capacity.polled(load(waiting=1), peak=FIRST)
    assert capacity.limit == FIRST


@pytest.mark.parametrize("too_much", [load(waiting=2), load(preemptions=1)])
def test_it_shrinks_when_the_engine_queues_or_preempts(too_much: Load) -> None:
    capacity = Capacity()
    capacity.limit = 100
    capacity.polled(load(waiting=1), peak=100)
    capacity.polled(too_much, peak=100)
    assert capacity.limit == 95
    for _ in range(200):
        capacity.polled(load(waiting=9), peak=100)
    assert capacity.limit == 1


def test_preemptions_before_our_time_are_not_ours() -> None:
    """The first poll only notes the engine's counter."""
    capacity = Capacity()
    capacity.polled(load(preemptions=7), peak=0)
    assert capacity.limit == FIRST


def test_short_requests_between_two_polls_are_seen() -> None:
    """What counts is the most that ran since the last poll, not what runs at its moment."""
    runs = Runs()
    for number in range(3):
        grant = Grant(f"p.{number}", 1, "normal", "t", 1, 0, 0, 0, False, 1_000, 5, b"", b"")
        runs.drop(runs.add(grant)[0])
        runs.add(grant)
    for run in runs.held():
        runs.drop(run)
    assert (runs.peak(), runs.peak()) == (3, 0)


@pytest.mark.parametrize(("slots", "most"), [(16, 17), (None, MOST)])
def test_never_more_than_the_engine_has_and_one(slots: int | None, most: int) -> None:
    capacity = Capacity()
    for _ in range(500):
        capacity.polled(load(slots=slots), peak=capacity.limit)
    assert capacity.limit == most


def test_fixed_slots_stay_and_come_back_after_a_refusal() -> None:
    """`--slots` is not learned away; a busy engine shrinks it for a while only."""
    capacity = Capacity(20)
    capacity.polled(load(waiting=9), peak=20)
    assert capacity.limit == 20
    capacity.refused(active=10)
    assert capacity.limit == 10
    capacity.refused(active=30)
    assert capacity.limit == 9
    for _ in range(50):
        capacity.polled(load(), peak=capacity.limit)
    assert capacity.limit == 20
