"""Orders: cancel stops the engine within a second, drain lets the worker leave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from tests.worker.desk import Desk
from tests.worker.scripted import Held, ScriptedEngine, answers

from forebay_shared.calls import Grant, Operator
from forebay_shared.settings import PoolSettings

pytestmark = pytest.mark.anyio


@pytest.fixture
async def desk(redis_url: str) -> AsyncIterator[Desk]:
    """A pool with leases so long that no renewal tells of a cancel before its order does."""
    one = Desk(redis_url, PoolSettings())
    await one.open()
    yield one
    await one.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_request_stops_its_engine_call(desk: Desk, stream: bool) -> None:
    """Cancel while running: the call is closed within 1 s, the slot is free, the state stays."""
    engine = ScriptedEngine(Held())
    worker, _ = await desk.worker(engine, slots=1)
    request_id = await desk.submit(stream=stream)
    await engine.called.wait()
    assert await desk.intake.cancel(request_id) == "cancelled"
    await asyncio.wait_for(engine.calls[0].over.wait(), 1)
    assert engine.calls[0].how == "aborted"
    engine.script = answers
    assert (await desk.result(await desk.submit())).state == "done"
    assert await desk.state(request_id) == "cancelled"
    assert len(worker.runs) == 0


async def test_cancel_and_finish_have_one_winner(desk: Desk) -> None:
    """Whichever comes first, the state is its, and never changes."""
    held = Held()
    engine = ScriptedEngine(held)
    worker, _ = await desk.worker(engine, slots=20)
    ids = [await desk.submit() for _ in range(20)]
    while len(engine.calls) < 20:
        engine.called.clear()
        await engine.called.wait()
    held.release.set()
    cancelled = await asyncio.gather(*(desk.intake.cancel(one) for one in ids))
    await asyncio.wait_for(worker.runs.empty.wait(), 3)
    assert [await desk.state(one) for one in ids] == cancelled
    assert set(cancelled) <= {"cancelled", "done"}


async def test_an_order_to_drain_lets_the_worker_leave(desk: Desk) -> None:
    """`drain` through the control list ends the worker like a signal."""
    worker, task = await desk.worker(ScriptedEngine(answers))
    await desk.result(await desk.submit())
    await Operator(desk.library).order(worker.id, "drain")
    assert await asyncio.wait_for(task, 3) == 0


async def test_an_old_or_odd_order_is_left(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """A cancel for another lease does nothing; what is not understood is logged."""
    engine = ScriptedEngine(Held())
    worker, _ = await desk.worker(engine, slots=1)
    request_id = await desk.submit()
    await engine.called.wait()
    with caplog.at_level(logging.WARNING, "forebay"):
        caplog.clear()
        worker.control.obey(f"cancel {request_id} 999999")
        worker.control.obey("dance")
    assert [row.message for row in caplog.records] == ["order not understood"]
    assert worker.runs.held()[0].stopped is None


async def test_a_cancel_right_behind_the_grant_leaves_nothing_behind(desk: Desk) -> None:
    """The order may come before the run's first step: the slot is free, the engine not called."""
    engine = ScriptedEngine(answers)
    worker, _ = await desk.worker(engine, slots=1)
    start = worker.taker.start

    def cancelled_at_once(grant: Grant) -> None:
        start(grant)
        worker.control.obey(f"cancel {grant.request_id} {grant.call}")
        worker.taker.start = start

    worker.taker.start = cancelled_at_once
    request_id = await desk.submit()
    await desk.until(request_id, "running")
    await desk.intake.cancel(request_id)
    assert (await desk.result(await desk.submit())).state == "done"
    assert len(engine.calls) == 1
    await asyncio.wait_for(worker.runs.empty.wait(), 1)
