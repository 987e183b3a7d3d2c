"""Sweeping: shared among workers without an appointed one, and done by whoever is left."""

from __future__ import annotations

import random

import pytest
from tests.worker.desk import Desk
from tests.worker.scripted import Held, ScriptedEngine, answers

from forebay_worker.sweeper import MOST_TICKS, Stride

pytestmark = pytest.mark.anyio


def offers(workers: int, ticks: int) -> tuple[float, float]:
    """Offers a tick, and the longest gap between sweeps in ticks, once it has settled."""
    strides = [Stride() for _ in range(workers)]
    due = sorted((random.uniform(0, 1), index) for index in range(workers))
    swept, count, gap = 0.0, 0, 0.0
    while due[0][0] < ticks:
        now, index = min(due)
        needed = now - swept >= 1
        if now > ticks / 2:
            count += 1
            gap = max(gap, now - swept) if needed else gap
        swept = now if needed else swept
        strides[index].note(needed)
        due.remove((now, index))
        due.append((now + strides[index].next_ticks(), index))
        due.sort()
    return count / (ticks / 2), gap


@pytest.mark.parametrize("workers", [1, 2, 8, 30])
def test_offers_do_not_grow_with_workers_and_leave_no_gap(workers: int) -> None:
    """A handful of offers a tick, and never three ticks without a sweep."""
    random.seed(workers)
    a_tick, gap = offers(workers, 400)
    assert a_tick < 8
    assert gap < 3


def test_a_worker_alone_offers_each_tick_and_nobody_stays_away_for_long() -> None:
    stride = Stride()
    assert 0.8 <= stride.next_ticks() <= 1.2
    for _ in range(100):
        stride.note(needed=False)
    assert stride.next_ticks() <= MOST_TICKS * 1.2
    for _ in range(4):
        stride.note(needed=True)
    assert stride.next_ticks() <= 1.2


async def test_what_a_dead_worker_held_is_served_by_another(desk: Desk) -> None:
    """Its leases run out, the survivor sweeps, takes and finishes; it counts one crash each."""
    engine = ScriptedEngine(Held())
    first, _ = await desk.worker(engine)
    ids = [await desk.submit() for _ in range(4)]
    for one in ids:
        await desk.until(one, "running")
    second, _ = await desk.worker(ScriptedEngine(answers))
    await desk.kill(first)
    assert [(await desk.result(one)).state for one in ids] == ["done"] * 4
    assert [(await desk.show(one)).crashes for one in ids] == [1] * 4
    reclaimed = second.metrics.registry.get_sample_value(
        "forebay_swept_total", {"what": "reclaimed"}
    )
    assert reclaimed == 4
