"""`forebay drain` with real workers: one that leaves, and a pool that runs dry."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from click.testing import Result
from tests.cli.conftest import Forebay
from tests.cli.filled import fill
from tests.worker.desk import Desk
from tests.worker.scripted import Held, ScriptedEngine, answers

from forebay_shared.calls import Admission, Operator, Refusal
from forebay_shared.connect import connect
from forebay_shared.ids import new_request_id
from forebay_shared.keys import POOLS
from forebay_shared.records import Envelope
from forebay_worker.worker import Worker

pytestmark = pytest.mark.anyio

Waiting = Callable[[], Coroutine[Any, Any, Process]]
Drain = Callable[..., Coroutine[Any, Any, Result]]


@pytest.fixture
async def desk(redis_url: str) -> AsyncIterator[Desk]:
    """A pool that workers have registered."""
    one = Desk(redis_url)
    await one.open()
    await one.redis.zadd(POOLS, {"default": 1})
    yield one
    await one.close()
    async with connect(redis_url) as redis:
        # Where a test failed half-way, a command may wait still; now there is nothing to wait for.
        await redis.flushall()


@pytest.fixture
def drain(desk: Desk, forebay: Forebay) -> Drain:
    """Runs `forebay drain <words>` beside the workers of the test."""

    async def call(*words: str) -> Result:
        async with asyncio.timeout(8):
            return await asyncio.to_thread(forebay, "drain", *words, "--redis", desk.url)

    return call


@pytest.fixture
async def waiting(desk: Desk) -> AsyncIterator[Waiting]:
    """Starts `forebay drain --pool` as a process, whose words can be waited for."""
    started: list[Process] = []

    async def call() -> Process:
        command = [sys.executable, "-m", "forebay_shared.cli", "drain", "--pool"]
        started.append(
            await asyncio.create_subprocess_exec(
                *command, "--redis", desk.url, stdout=PIPE, stderr=PIPE
            )
        )
        return started[-1]

    yield call
    for one in started:
        if one.returncode is None:
            one.kill()
        await one.wait()


async def ended(process: Process) -> tuple[bytes, bytes]:
    """Its stdout and stderr, once it has ended."""
    async with asyncio.timeout(8):
        return await process.communicate()


async def said(process: Process) -> str:
    """The next line of its stderr."""
    assert process.stderr is not None
    async with asyncio.timeout(8):
        return (await process.stderr.readline()).decode()


async def told_to_drain(worker: Worker) -> None:
    async with asyncio.timeout(5):
        await worker.drain.started.wait()


async def until_registered(desk: Desk, worker: str) -> None:
    async with asyncio.timeout(5):
        while worker not in [row["id"] for row in await registered(desk)]:
            pass


async def registered(desk: Desk) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = (await Operator(desk.library).status())["workers"]
    return rows


async def refusal(desk: Desk) -> str | None:
    """The reason why a request is refused now; None where it is admitted."""
    envelope = Envelope("/v1/chat/completions", "m", b"{}")
    row = Admission(new_request_id("default"), "normal", "t", envelope, 60_000)
    (answer,) = await desk.intake.admit([row], "desk.1")
    return answer.reason if isinstance(answer, Refusal) else None


@pytest.mark.parametrize("count", [1, 3])
async def test_a_pool_runs_dry(desk: Desk, waiting: Waiting, count: int) -> None:
    """New requests are refused; it is told when what was accepted has ended."""
    held = Held()
    await desk.worker(ScriptedEngine(held), slots=1)
    ids = [await desk.submit() for _ in range(count)]
    await desk.until(ids[0], "running")
    drain = await waiting()
    assert await said(drain) == (
        f"new requests are refused; waiting for {count - 1} queued, 1 running\n"
    )
    assert await refusal(desk) == "draining"
    assert drain.returncode is None
    held.release.set()
    result, _ = await ended(drain)
    assert drain.returncode == 0
    assert result.decode() == (
        "pool default has drained: nothing is queued or running; "
        "`forebay drain --pool default --end` ends the draining\n"
    )
    assert [await desk.state(one) for one in ids] == ["done"] * count


async def test_no_wait_and_end(desk: Desk, drain: Drain) -> None:
    """It refuses at once, until --end."""
    await desk.submit()
    told = await drain("--pool", "default", "--no-wait")
    assert told.stdout.startswith("pool default drains: 1 queued, 0 running; ")
    assert await refusal(desk) == "draining"
    ended = await drain("--pool", "--end")
    assert (ended.exit_code, ended.stdout) == (0, "pool default accepts requests\n")
    assert await refusal(desk) is None


async def test_somebody_else_ends_it(desk: Desk, waiting: Waiting) -> None:
    """Waiting on would be for nothing. What kept the pool from running dry was told before."""
    await desk.submit()
    drain = await waiting()
    assert "no worker is alive: what waits does not run" in await said(drain)
    await said(drain)
    await Operator(desk.library).switch(draining=False)
    _, told = await ended(drain)
    assert drain.returncode == 1
    assert b"Error: somebody ended the draining of pool default: 1 queued" in told


async def test_a_paused_pool_does_not_run_dry(desk: Desk, waiting: Waiting) -> None:
    """Which is told; it does after all once it is resumed."""
    await desk.submit()
    await Operator(desk.library).switch(paused=True)
    drain = await waiting()
    assert "the pool is paused: what waits does not run" in await said(drain)
    await Operator(desk.library).switch(paused=False)
    await desk.worker(ScriptedEngine(answers))
    await ended(drain)
    assert drain.returncode == 0


async def test_a_worker_leaves(desk: Desk, drain: Drain) -> None:
    """It finishes what runs; the command returns when it has left the registry."""
    held = Held()
    worker, task = await desk.worker(ScriptedEngine(held))
    await until_registered(desk, worker.id)
    request_id = await desk.submit()
    await desk.until(request_id, "running")
    draining = asyncio.create_task(drain(worker.id, "--json"))
    await told_to_drain(worker)
    assert not draining.done()
    held.release.set()
    result = await draining
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"pool": "default", "worker": worker.id, "left": True}
    assert worker.id not in [row["id"] for row in await registered(desk)]
    assert await task == 0
    assert await desk.state(request_id) == "done"


async def test_asked_again_it_is_not_hurried(desk: Desk, drain: Drain) -> None:
    """A second order would give back at once what still runs."""
    held = Held()
    worker, task = await desk.worker(ScriptedEngine(held))
    await until_registered(desk, worker.id)
    request_id = await desk.submit()
    await desk.until(request_id, "running")
    assert f"worker {worker.id} drains" in (await drain(worker.id, "--no-wait")).stdout
    await told_to_drain(worker)
    await worker.registry.register()
    assert "it drains already" in (await drain(worker.id, "--no-wait")).stderr
    while await desk.redis.llen(desk.keys.control(worker.id)):
        pass  # asks as fast as Redis answers: the worker has read all its orders then
    assert not worker.drain.hurry.is_set()
    held.release.set()
    assert await task == 0
    assert await desk.state(request_id) == "done"


async def test_a_worker_that_died_is_not_waited_for(desk: Desk, drain: Drain) -> None:
    """Nobody will take it out of the registry here: no process sweeps."""
    await fill(desk.url)
    await desk.redis.hset("fb:{default}:worker:w1", "seen", "0")
    result = await drain("w1")
    assert result.exit_code == 1
    assert "Error: worker w1 has died: it was last seen" in result.stderr


async def test_an_unknown_worker(desk: Desk, drain: Drain) -> None:
    """The workers there are, in all pools or in the one that is named."""
    await fill(desk.url)
    await fill(desk.url, "other")
    result = await drain("w9")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: there is no worker 'w9'; there are:\n"
        "  w1  pool default, serving, holds 1\n"
        "  w1  pool other, serving, holds 1\n"
    )
    only = await drain("w9", "--pool", "other")
    assert "pool default" not in only.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [((), "Name a WORKER, or say --pool"), (("w1", "--end"), "--end is for pools")],
)
async def test_what_cannot_be_meant(drain: Drain, words: tuple[str, ...], told: str) -> None:
    """Bad input, before Redis is asked."""
    result = await drain(*words)
    assert result.exit_code == 2
    assert told in result.stderr
