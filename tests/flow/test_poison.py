"""A request that kills whatever engine runs it: it alone is convicted, its neighbours end well.

The engine is a process that dies for good each time and is started again only after its worker has
given back what it held, as a supervisor with a pause would. The full size is slow:

    scripts/test -m slow tests/flow/test_poison.py
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import pytest
from tests.flow.engines import sim_server
from tests.flow.identities import assert_identities
from tests.flow.processes import until
from tests.flow.system import System, running
from tests.flow.test_worker_death import body_of, shown, submit
from tests.vllm.rig import EngineServer

from forebay_shared.calls import Shown
from forebay_worker.engine.openai import OpenAIEngine
from forebay_worker.options import WorkOptions
from forebay_worker.worker import Worker

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Case:
    """So many requests beside the killer, which is in their midst; one worker has room for all."""

    neighbours: int
    crashes: int
    wait_s: float

    @property
    def slots(self) -> int:
        return self.neighbours + 1


SMALL = Case(neighbours=8, crashes=4, wait_s=30)
FULL = Case(neighbours=31, crashes=5, wait_s=120)


async def test_a_poison_prompt_is_convicted_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine on one engine: four crashes, each of them with fewer beside."""
    engine = sim_server(tmp_path)
    async with running(tmp_path, producers=1) as system:
        ids = await submit_all(system, SMALL)
        async with worker_here(system, engine, SMALL.slots):
            await restart_until_ended(system, engine, ids, SMALL, capsys)
        await check_verdict(system, ids, SMALL)


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_a_poison_prompt_among_thirty_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same with all processes as in production, and their waits."""
    engine = sim_server(tmp_path)
    async with running(tmp_path, producers=1) as system:
        ids = await submit_all(system, FULL)
        engine.start()
        await asyncio.to_thread(engine.wait_ready)
        await system.add_worker(engine.url, "--slots", str(FULL.slots))
        try:
            await restart_until_ended(system, engine, ids, FULL, capsys)
        finally:
            engine.kill()
        await check_verdict(system, ids, FULL)


@asynccontextmanager
async def worker_here(system: System, engine: EngineServer, slots: int) -> AsyncIterator[None]:
    """A worker in this process, which judges a failed engine without the usual pause."""
    engine.start()
    await asyncio.to_thread(engine.wait_ready)
    options = WorkOptions(system.server.url, engine.url, slots=slots, recheck_s=0.1)
    worker = Worker(options, OpenAIEngine(engine.url))
    serving = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        engine.kill()
        worker.drain.request("test is over")
        worker.drain.request("test is over")
        await serving


async def submit_all(system: System, case: Case) -> list[str]:
    """The ids in order of arrival; the killer's is in the middle."""
    ids = []
    async with aiohttp.ClientSession() as client:
        for number in range(case.slots):
            body: dict[str, Any] = body_of("sim", 40, number)
            if number == case.neighbours // 2:
                body["sim"] = {"fail": "crash", "after_tokens": 5}
            ids.append(await submit(client, system.producers[0], body))
    return ids


async def restart_until_ended(
    system: System,
    engine: EngineServer,
    ids: list[str],
    case: Case,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Brings the engine back after each crash until all have ended, and prints the figures."""
    began, crashes, most = monotonic(), 0, 0

    async def nothing_runs() -> bool:
        return bool((await system.status())["running"] == 0)

    async def died_or_all_ended() -> bool:
        nonlocal most
        rows = await shown(system, ids)
        most = max(most, sum(row.state == "running" for row in rows))
        return not engine.alive() or all(row.ended_ms for row in rows)

    while True:
        await until(died_or_all_ended, case.wait_s, "the engine dies or all end")
        if engine.alive():
            break
        crashes += 1
        assert crashes <= case.crashes
        await until(nothing_runs, 10, "the worker gives back what it held")
        if all(row.ended_ms for row in await shown(system, ids)):
            break
        engine.start()  # not until ready: the killer may be there before we look
    took_s = monotonic() - began
    with capsys.disabled():
        print(f"\npoison among {case.neighbours}: {crashes} engine crashes, {took_s:.1f} s")
    assert most == case.slots, f"only {most} were in flight together"
    assert crashes == case.crashes


async def check_verdict(system: System, ids: list[str], case: Case) -> None:
    rows = await shown(system, ids)
    killer = rows.pop(case.neighbours // 2)
    assert (killer.state, reason(killer)) == ("dead", "crash_loop")
    assert [row.state for row in rows] == ["done"] * case.neighbours
    assert all(row.attempts == 0 and row.crashes < killer.crashes for row in rows)
    ledger = await assert_identities(system)
    assert (ledger["done"], ledger["dead"]) == (case.neighbours, 1)
    letters = await system.redis.xrange(f"fb:{{{system.library.pool}}}:dead")
    assert [fields[b"id"].decode() for _, fields in letters] == [killer.request_id]


def reason(row: Shown) -> str:
    return str(json.loads(row.result.partition(b"\n")[0])["reason"])
