"""Keeping leases: from grant to confirmed end, and what happens when one is lost."""

from __future__ import annotations

import asyncio

import pytest
from tests.worker.desk import CHAT, FAST, Desk
from tests.worker.scripted import Held, ScriptedEngine, answers

from forebay_shared.calls import Take
from forebay_shared.records import Envelope

pytestmark = pytest.mark.anyio

SHORT = FAST.model_copy(update={"lease_ms": 300, "renew_ms": 50, "sweep_ms": 50, "reclaim_ms": 50})


async def test_work_of_ten_leases_runs_once(redis_url: str) -> None:
    """Renewals carry a request far past its first lease; nobody else gets it."""
    desk = Desk(redis_url, SHORT)
    await desk.open()
    held = Held()
    first, second = ScriptedEngine(held), ScriptedEngine(held)
    await desk.worker(first, slots=30)
    await desk.worker(second, slots=30)
    ids = await desk.admit([Envelope(CHAT, "m", b'{"model":"m"}')] * 40)
    await asyncio.sleep(3.0)  # ten leases of service
    held.release.set()
    assert [(await desk.result(one)).state for one in ids] == ["done"] * 40
    assert len(first.calls) + len(second.calls) == 40
    shown = [await desk.show(one) for one in ids]
    assert {(one.takes, one.crashes) for one in shown} == {(1, 0)}
    await desk.close()


async def test_a_lost_lease_stops_the_engine_and_writes_nothing(desk: Desk) -> None:
    """Renewal says lost: the engine call is closed, the new holder's request stays as it is."""
    engine = ScriptedEngine(Held())
    worker, _ = await desk.worker(engine, slots=1)
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 1)
    desk.stop_renewing(worker)
    await desk.until(request_id, "queued")
    await desk.leases.take(Take("other", 1, 8, 8, {"normal": 8}))
    await worker.keeper.renew()
    await asyncio.wait_for(engine.calls[0].over.wait(), 2)
    assert engine.calls[0].how == "aborted"
    await asyncio.wait_for(worker.runs.empty.wait(), 1)
    seen = await desk.seen(request_id)
    assert (seen.state, seen.offset) == ("running", 1)
    lost = worker.metrics.registry.get_sample_value("forebay_lost_leases_total")
    assert lost == 1


async def test_a_stalled_worker_does_not_end_what_it_lost(desk: Desk) -> None:
    """Its late result is refused: one terminal record, the new holder's."""
    held = Held()
    engine = ScriptedEngine(held)
    worker, _ = await desk.worker(engine, slots=1)
    request_id = await desk.submit()
    await engine.called.wait()
    desk.stop_renewing(worker)
    await desk.until(request_id, "queued")
    other = ScriptedEngine(answers)
    second, _ = await desk.worker(other)
    result = await desk.result(request_id)
    held.release.set()
    await asyncio.wait_for(worker.runs.empty.wait(), 2)
    assert (await desk.result(request_id)) == result
    assert len(other.calls) + len(engine.calls) == 2
    refused = worker.metrics.registry.get_sample_value(
        "forebay_stale_writes_total", {"step": "finish"}
    )
    assert refused == 1
    assert len(second.runs) == 0
