"""Redis away: what runs goes on, results are kept and written, service resumes soon."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.flow.processes import Child
from tests.servers import Server, start_server
from tests.worker.desk import CHAT, Desk
from tests.worker.scripted import Held, ScriptedEngine, answer, answers, chunk

from forebay_shared.records import Envelope
from forebay_worker.engine import Chunk, EngineCall, EngineEvent

pytestmark = pytest.mark.anyio

BACK_S = 5.0
"""A worker serves again within so long of Redis' return."""


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Server]:
    server = start_server(tmp_path, extra=("--appendonly", "yes", "--appendfsync", "always"))
    yield server
    server.resume()
    server.stop()


@pytest.fixture
async def desk(durable: Server) -> AsyncIterator[Desk]:
    one = Desk(durable.url)
    await one.open()
    yield one
    await one.close()


async def test_a_result_produced_while_redis_is_dead_is_written(
    desk: Desk, durable: Server
) -> None:
    """The result waits in the worker, the request runs once, and new work is served soon."""
    held = Held()
    engine = ScriptedEngine(held)
    await desk.worker(engine)
    ids = [await desk.submit() for _ in range(3)]
    while len(engine.calls) < 3:
        engine.called.clear()
        await engine.called.wait()
    durable.kill()
    held.release.set()
    for call in engine.calls:
        await call.over.wait()
    await asyncio.sleep(0.5)
    durable.restart()
    assert [(await desk.result(one)).body for one in ids] == [answer()] * 3
    assert len(engine.calls) == 3
    began_s = time.monotonic()
    assert (await desk.result(await desk.submit())).state == "done"
    assert time.monotonic() - began_s < BACK_S


async def test_a_pause_of_redis_costs_nothing(desk: Desk, durable: Server) -> None:
    """Redis stands still for longer than a lease: nobody is blamed, nothing runs twice."""
    held = Held()
    engine = ScriptedEngine(held)
    await desk.worker(engine)
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 1)
    durable.pause()
    await asyncio.sleep(1.5)
    held.release.set()
    await engine.calls[0].over.wait()
    durable.resume()
    result = await desk.result(request_id)
    shown = await desk.show(request_id)
    assert (result.state, shown.takes, shown.crashes) == ("done", 1, 0)
    events = [event for _, event in (await desk.seen(request_id)).chunks]
    assert events == [chunk(" 0"), chunk(" end", finish="stop")]


async def test_chunks_produced_while_redis_is_dead_come_in_order(
    desk: Desk, durable: Server
) -> None:
    """More chunks than one call carries wait in the worker and are written once, in order."""
    go_on = asyncio.Event()
    count = 450

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        yield Chunk(chunk("first"))
        await go_on.wait()
        for number in range(count):
            yield Chunk(chunk(f" {number}"))
        yield Chunk(chunk("", finish="stop"))

    engine = ScriptedEngine(script)
    await desk.worker(engine)
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 1)
    durable.kill()
    go_on.set()
    await engine.calls[0].over.wait()
    durable.restart()
    assert (await desk.result(request_id)).state == "done"
    seen = await desk.seen(request_id)
    expected = [chunk("first"), *(chunk(f" {n}") for n in range(count)), chunk("", finish="stop")]
    assert [event for _, event in seen.chunks] == expected
    assert [offset for offset, _ in seen.chunks] == list(range(1, count + 3))


async def test_it_serves_again_soon_after_each_of_several_restarts(
    desk: Desk, durable: Server
) -> None:
    """An idle worker whose blocked reads were cut hears of new work again."""
    worker, _ = await desk.worker(ScriptedEngine(answers))
    for _ in range(5):
        durable.kill()
        await asyncio.sleep(0.2)
        durable.restart()
        began_s = time.monotonic()
        assert (await desk.result(await desk.submit())).state == "done"
        assert time.monotonic() - began_s < BACK_S
    assert worker.link.up


async def test_it_waits_for_a_redis_that_is_not_up_yet(desk: Desk, durable: Server) -> None:
    """Started before Redis, a worker serves once Redis is there."""
    request_id = await desk.submit()
    durable.kill()
    _, task = await desk.worker(ScriptedEngine(answers), serving=False)
    await asyncio.sleep(0.3)
    assert not task.done()
    durable.restart()
    assert (await desk.result(request_id)).state == "done"


async def test_a_functions_flush_and_an_empty_redis_are_survived(desk: Desk) -> None:
    """FUNCTION FLUSH and FLUSHALL under a running worker: the next request is served."""
    await desk.worker(ScriptedEngine(answers))
    await desk.redis.function_flush()
    assert (await desk.result(await desk.submit())).state == "done"
    await desk.redis.flushall()
    assert (await desk.result(await desk.submit())).state == "done"


async def test_requests_of_a_killed_process_run_again(desk: Desk, tmp_path: Path) -> None:
    """SIGKILL with 16 running and 48 waiting: all 64 end as done, with no help."""
    body = b'{"model":"sim","messages":[{"role":"user","content":"x"}],"min_tokens":400}'
    ids = await desk.admit([Envelope(CHAT, "sim", body)] * 64)
    arguments = ["--redis", desk.url, "--slots", "16", "--sim-speed", "4"]
    child = Child("forebay_worker", arguments, tmp_path / "first.log")
    await desk.until(ids[0], "running")
    child.send(signal.SIGKILL)
    began_s = time.monotonic()
    await desk.worker(ScriptedEngine(answers, "sim"), slots=64)
    assert [(await desk.result(one)).state for one in ids] == ["done"] * 64
    settings = desk.settings
    assert time.monotonic() - began_s < (settings.lease_ms + settings.reclaim_ms) / 1000 + 3
    child.kill()


async def test_a_process_that_stood_still_stops_what_it_lost(desk: Desk, tmp_path: Path) -> None:
    """SIGSTOP for two leases, SIGCONT: the others' result stands, the sleeper serves on."""
    slow = {"model": "sim", "min_tokens": 3_000, "max_tokens": 3_000}
    child = Child("forebay_worker", ["--redis", desk.url, "--slots", "1"], tmp_path / "1.log")
    request_id = await desk.submit(body=slow)
    await desk.until(request_id, "running")
    child.send(signal.SIGSTOP)
    other, _ = await desk.worker(ScriptedEngine(answers, "sim"))
    result = await desk.result(request_id)
    assert result.body == answer()
    await desk.kill(other)
    child.send(signal.SIGCONT)
    again = await desk.submit(body={"model": "sim", "max_tokens": 1})
    assert (await desk.result(again)).state == "done"
    assert await desk.result(request_id) == result
    assert child.stop() == 0
