"""Replies of Redis lost at random, under load: every request ends once, each chunk comes once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

import pytest
from tests.worker.desk import CHAT, Desk
from tests.worker.proxy import Proxy
from tests.worker.scripted import ScriptedEngine, answer, chunk

from forebay_shared.calls import Operator
from forebay_shared.records import Envelope
from forebay_shared.settings import PoolSettings
from forebay_worker.engine import Answer, Chunk, EngineCall, EngineEvent

pytestmark = pytest.mark.anyio

STEPS = ("finish", "emit", "finish", "emit", "renew", "sweep")  # finish_take too
TEXTS = [chunk(f" {number}") for number in range(20)]


async def hastily(call: EngineCall) -> AsyncGenerator[EngineEvent]:
    """Twenty tokens in some 40 ms, or one answer in about 20."""
    if not call.stream:
        await asyncio.sleep(random.uniform(0.01, 0.03))
        yield Answer(200, "application/json", answer())
        return
    for text in TEXTS:
        yield Chunk(text)
        await asyncio.sleep(0.002)


async def lose_again_and_again(proxy: Proxy, losses: list[str]) -> None:
    while True:
        step = random.choice(STEPS)
        proxy.lose(f"forebay_{step}_")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await proxy.lost.wait()
                losses.append(step)


@pytest.fixture
async def desk(redis_url: str) -> AsyncIterator[Desk]:
    """Leases outlast several lost replies in a row, and are renewed often enough to lose some."""
    one = Desk(redis_url, PoolSettings(lease_ms=10_000, renew_ms=100, sweep_ms=50))
    await one.open()
    yield one
    await one.close()


async def test_every_request_ends_once_though_replies_are_lost(desk: Desk) -> None:
    """What was carried out without an answer is repeated harmlessly, whichever step it was."""
    random.seed(7)
    proxy = Proxy(desk.url)
    await proxy.open()
    engine = ScriptedEngine(hastily)
    worker, _ = await desk.worker(engine, redis=proxy.url, slots=6)
    losses: list[str] = []
    losing = asyncio.create_task(lose_again_and_again(proxy, losses))
    whole = Envelope(CHAT, "m", b'{"model":"m"}')
    stream = Envelope(CHAT, "m", b'{"model":"m","stream":true}', stream=True)
    ids = await desk.admit([whole, stream] * 50)
    for one in ids:
        assert (await desk.result(one)).state == "done"
    losing.cancel()
    for one in ids[1::2]:
        assert [event for _, event in (await desk.seen(one)).chunks] == TEXTS
    assert {"finish", "emit"} <= set(losses)
    shown = [await desk.show(one) for one in ids]
    assert {(one.takes, one.attempts, one.crashes) for one in shown} == {(1, 0, 0)}
    assert len(engine.calls) == len(ids)
    await asyncio.wait_for(worker.runs.empty.wait(), 2)
    status = await Operator(desk.library).status()
    assert (status["queued"], status["running"]) == (0, 0)
    await desk.close()
    await proxy.close()
