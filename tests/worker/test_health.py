"""The admin listener: alive, ready or why not, and the figures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.servers import start_server
from tests.worker.desk import Desk
from tests.worker.scripted import ScriptedEngine, answers

from forebay_worker.options import Address
from forebay_worker.worker import Worker

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as one:
        yield one


async def get(session: aiohttp.ClientSession, worker: Worker, path: str) -> tuple[int, str]:
    async with session.get(f"http://127.0.0.1:{worker.health.port}{path}") as response:
        return response.status, await response.text()


async def test_a_serving_worker_is_ready(desk: Desk, session: aiohttp.ClientSession) -> None:
    worker, _ = await desk.worker(ScriptedEngine(answers), admin=Address("127.0.0.1", 0))
    await desk.result(await desk.submit())
    assert await get(session, worker, "/healthz") == (200, "alive\n")
    assert await get(session, worker, "/readyz") == (200, "ready\n")
    status, page = await get(session, worker, "/metrics")
    assert status == 200
    assert 'forebay_ended_total{class="normal",state="done"} 1.0' in page
    assert 'forebay_tokens_total{kind="prompt"} 7.0' in page


async def test_an_engine_that_is_down_makes_it_not_ready(
    desk: Desk, session: aiohttp.ClientSession
) -> None:
    """Nothing is taken, and /readyz says why."""
    engine = ScriptedEngine(answers)
    engine.up = False
    worker, _ = await desk.worker(engine, admin=Address("127.0.0.1", 0))
    request_id = await desk.submit()
    assert await get(session, worker, "/readyz") == (503, "not ready: engine\n")
    assert await desk.state(request_id) == "queued"
    engine.up = True
    assert (await desk.result(request_id)).state == "done"


async def test_a_draining_worker_is_not_ready(desk: Desk, session: aiohttp.ClientSession) -> None:
    worker, _ = await desk.worker(ScriptedEngine(answers), admin=Address("127.0.0.1", 0))
    worker.drain.started.set()
    assert await get(session, worker, "/readyz") == (503, "not ready: draining\n")
    assert (await get(session, worker, "/healthz"))[0] == 200


async def test_without_redis_it_is_alive_and_not_ready(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    """The listener answers before Redis does, and after Redis has gone."""
    server = start_server(tmp_path)
    desk = Desk(server.url)
    await desk.open()
    worker, _ = await desk.worker(ScriptedEngine(answers), admin=Address("127.0.0.1", 0))
    await desk.result(await desk.submit())
    server.kill()
    while worker.link.up:
        await worker.runs.empty.wait()
        await get(session, worker, "/healthz")
    assert await get(session, worker, "/readyz") == (503, "not ready: redis\n")
    assert (await get(session, worker, "/healthz"))[0] == 200
    await desk.close()
    server.stop()
