"""A wedged engine: it takes connections and answers nothing, so its calls are closed in time."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from tests.flow.processes import Child, until
from tests.worker.desk import Desk
from tests.worker.scripted import Held, ScriptedEngine, answers, chunk

from forebay_worker.engine import Chunk, EngineCall, EngineEvent
from forebay_worker.engine.openai import OpenAIEngine
from forebay_worker.pulse import Pulse

pytestmark = pytest.mark.anyio

LONG = {"model": "sim", "max_tokens": 10_000, "min_tokens": 9_000}
WEDGED_S = 0.2


class SimServer:
    """A simulated engine in a process of its own, which can be halted."""

    def __init__(self, child: Child, url: str) -> None:
        self.child = child
        self.url = url

    def halt(self) -> None:
        self.child.send(signal.SIGSTOP)

    def go_on(self) -> None:
        self.child.send(signal.SIGCONT)


@pytest.fixture
async def sim(tmp_path: Path) -> AsyncIterator[SimServer]:
    log = tmp_path / "sim.log"
    child = Child("forebay_worker.engine.sim_http", ["--max-model-len", "20000"], log)
    said = ""

    async def listening() -> bool:
        nonlocal said
        said = log.read_text()
        return "listening on" in said

    await until(listening, 20, "the engine listens")
    found = re.search(r"http://\S+", said)
    assert found is not None
    yield SimServer(child, found.group())
    child.kill()


async def test_requests_of_a_wedged_engine_are_given_back(desk: Desk, sim: SimServer) -> None:
    """As crashed after two leases, long before their deadline; a stream that was seen ends."""
    await desk.worker(OpenAIEngine(sim.url), wedged_s=WEDGED_S)
    whole = await desk.submit(body=LONG)
    stream = await desk.submit(stream=True, body=LONG)
    await desk.until(whole, "running")
    await desk.until_chunks(stream, 1)
    sim.halt()
    async with asyncio.timeout(12):
        await desk.until(whole, "queued")
        result = await desk.result(stream)
    assert (result.state, result.reason) == ("failed", "interrupted")
    shown = await desk.show(whole)
    assert (shown.takes, shown.crashes, shown.attempts) == (1, 1, 0)
    sim.go_on()
    again = await desk.submit(body={"model": "sim", "max_tokens": 1})
    assert (await desk.result(again)).state == "done"


async def failing(pulse: Pulse, for_s: float) -> None:
    """Wait until the engine's health has failed for so long."""
    while pulse.failing_s < for_s:
        await pulse.check()
        await asyncio.sleep(0.02)


async def test_what_still_flows_is_left_alone(desk: Desk) -> None:
    """An engine that drains may say that it is not well, and finish its streams all the same."""
    limit_s = 2 * desk.settings.lease_ms / 1000
    ends = asyncio.Event()

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        number = 0
        while not ends.is_set():
            yield Chunk(chunk(f" {number}"))
            number += 1
            await asyncio.sleep(0.05)
        yield Chunk(chunk("", finish="stop"))

    engine = ScriptedEngine(script)
    worker, _ = await desk.worker(engine, wedged_s=WEDGED_S)
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 1)
    engine.up = False
    await failing(worker.pulse, limit_s)
    worker.wedge.look()
    ends.set()
    assert (await desk.result(request_id)).state == "done"


async def test_a_short_silence_costs_nothing(desk: Desk) -> None:
    """Well again before two leases have passed, it keeps its calls, however long they are."""
    held = Held()
    engine = ScriptedEngine(held)
    worker, _ = await desk.worker(engine, wedged_s=WEDGED_S)
    request_id = await desk.submit()
    await engine.called.wait()
    worker.runs.held()[0].heard_s -= 60
    engine.up = False
    await failing(worker.pulse, desk.settings.lease_ms / 1000)
    worker.wedge.look()
    engine.up = True
    assert await worker.pulse.check()
    assert worker.pulse.failing_s == 0
    held.release.set()
    assert (await desk.result(request_id)).state == "done"
    assert (len(engine.calls), (await desk.show(request_id)).takes) == (1, 1)


async def test_an_answer_that_has_come_owes_nothing(desk: Desk) -> None:
    """However the engine hangs from then on: what waits for Redis is kept."""
    engine = ScriptedEngine(answers)
    worker, _ = await desk.worker(engine, wedged_s=WEDGED_S)
    assert (await desk.result(await desk.submit())).state == "done"
    held = engine.script = Held()
    request_id = await desk.submit()
    while worker.runs.active == 0:
        engine.called.clear()
        await engine.called.wait()
    (run,) = worker.runs.held()
    assert run.heard_s < asyncio.get_running_loop().time()
    held.release.set()
    assert (await desk.result(request_id)).state == "done"
    assert run.heard_s == float("inf")
