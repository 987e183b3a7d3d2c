"""SIGTERM while Redis is in a bad way: cells that the tests of worker and producer leave open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic

import httpx
import pytest
from tests.producer.running import BODY, CHAT, QUICK, serving, until
from tests.producer.scripted import working
from tests.producer.scripts import stay
from tests.servers import Server, start_server
from tests.worker.desk import FAST, Desk
from tests.worker.scripted import Held, ScriptedEngine, answers

from forebay_producer.options import ServeOptions
from forebay_producer.serve import Producer
from forebay_shared.calls import Operator
from forebay_worker.drain import AFTER_GRACE_S
from forebay_worker.options import WorkOptions
from forebay_worker.worker import Worker

pytestmark = pytest.mark.anyio


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Server]:
    """It takes connections and never answers."""
    server = start_server(tmp_path)
    server.pause()
    yield server
    server.resume()
    server.stop()


async def test_a_worker_whose_redis_has_never_answered_is_gone_at_once(hanging: Server) -> None:
    worker = Worker(WorkOptions(hanging.url, grace_s=5.0), ScriptedEngine(answers), FAST)
    serving = asyncio.create_task(worker.serve())
    await asyncio.sleep(0.2)
    assert not serving.done()
    began_s = monotonic()
    worker.drain.request("test")
    assert await serving == 0
    assert monotonic() - began_s < AFTER_GRACE_S


@pytest.mark.parametrize("redis_is", ["killed", "silent"])
async def test_a_second_signal_does_not_wait_for_redis(tmp_path: Path, redis_is: str) -> None:
    """The grace is long, and nothing can be given back: gone within 2 s, leases run out."""
    with start_server(tmp_path) as server:
        desk = Desk(server.url)
        await desk.open()
        engine = ScriptedEngine(Held())
        worker, serving = await desk.worker(engine, grace_s=60.0)
        await desk.submit()
        await engine.called.wait()
        if redis_is == "killed":
            server.kill()
        else:
            server.pause()
        worker.drain.request("first")
        began_s = monotonic()
        worker.drain.request("second")
        assert await serving == 0
        assert monotonic() - began_s <= AFTER_GRACE_S
        server.resume()
        await desk.close()


async def test_a_worker_of_a_paused_pool_leaves_at_once(redis_url: str) -> None:
    """What waits there waits on, and is not touched."""
    desk = Desk(redis_url)
    await desk.open()
    await Operator(desk.library).switch(paused=True)
    worker, leaving = await desk.worker(ScriptedEngine(answers))
    request_id = await desk.submit()
    began_s = monotonic()
    worker.drain.request("test")
    assert await leaving == 0
    assert monotonic() - began_s < 1
    shown = await desk.show(request_id)
    assert (shown.state, shown.takes) == ("queued", 0)
    await desk.close()


async def test_a_producer_whose_redis_has_never_answered_is_gone_on_time(hanging: Server) -> None:
    """Also with a client that waits for it."""
    producer = Producer(ServeOptions(hanging.url, port=0, timings=QUICK))
    url = await producer.start()
    async with httpx.AsyncClient(base_url=url) as http:
        asking = asyncio.create_task(http.post(CHAT, json=BODY, timeout=20))
        await asyncio.sleep(0.2)
        began_s = monotonic()
        await producer.drain(asyncio.Event())
        assert monotonic() - began_s < QUICK.serve_on_s + QUICK.grace_s + 2
        assert (await asking).status_code == 503


@pytest.mark.parametrize("redis_is", ["killed", "silent"])
async def test_a_producer_with_open_answers_and_no_redis_is_gone_on_time(
    tmp_path: Path, redis_is: str
) -> None:
    """Its clients are told within the grace."""
    brief = replace(QUICK, grace_s=0.3, last_words_s=0.5)
    with start_server(tmp_path) as server:
        async with serving(server.url, timings=brief) as one, working(server.url, stay) as worker:
            asks = [
                asyncio.create_task(one.http.post(CHAT, json={**BODY, "stream": stream}))
                for stream in (False, True)
            ]
            await worker.wait_granted(2)
            await until(lambda: one.producer.waiters() == 2)
            if redis_is == "killed":
                server.kill()
            else:
                server.pause()
            began_s = monotonic()
            await one.producer.drain(asyncio.Event())
            assert monotonic() - began_s < brief.grace_s + 2
            assert [(await ask).status_code for ask in asks] == [502, 502]
            server.resume()
