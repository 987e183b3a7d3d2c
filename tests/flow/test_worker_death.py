"""Workers die, stall and go on: what they held ends once."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.flow.engines import EngineUnderTest
from tests.flow.identities import assert_identities
from tests.flow.processes import until
from tests.flow.system import QUICK, System, running

from forebay_shared.calls import Shown

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


def body_of(model: str, tokens: int, number: int = 0) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Story {number}"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }


async def submit(client: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> str:
    async with client.post(url + CHAT, json=body, headers={"Prefer": "respond-async"}) as answer:
        assert answer.status == 202, await answer.text()
        return answer.headers["Location"].rpartition("/")[2]


async def shown(system: System, ids: Sequence[str]) -> list[Shown]:
    rows = [await system.intake.show(request_id) for request_id in ids]
    return [row for row in rows if row is not None]


async def all_done(system: System, ids: Sequence[str]) -> bool:
    return all(row.state == "done" for row in await shown(system, ids))


def running_in(engines: Sequence[EngineUnderTest]) -> int:
    return sum(engine.running() for engine in engines)


async def test_killed_workers_requests_run_again_within_lease_and_sweep(
    system: System, engine_urls: list[EngineUnderTest], model: str
) -> None:
    """SIGKILL with requests running: all end once, the next grant within lease + sweep."""
    async with aiohttp.ClientSession() as client:
        tokens = 120 if engine_urls[0].kind == "sim" else 500  # long enough to be caught running
        bodies = [body_of(model, tokens, n) for n in range(16)]
        ids = await asyncio.gather(
            *[submit(client, system.producers[n % 2], body) for n, body in enumerate(bodies)]
        )

        async def half_runs() -> bool:
            return len([r for r in await shown(system, ids) if r.state == "running"]) >= 8

        await until(half_runs, 10, "requests run")
        before = await shown(system, ids)
        system.working[0].kill()
        killed_ms = (await shown(system, ids[:1]))[0].now_ms

        async def ended() -> bool:
            return await all_done(system, ids)

        await until(ended, 150, "all end")
    after = await shown(system, ids)
    again = [new for old, new in zip(before, after, strict=True) if new.takes > 1]
    assert again, "the killed worker held nothing"
    within_ms = QUICK.lease_ms + QUICK.reclaim_ms + QUICK.sweep_ms
    waits = sorted(row.taken_ms - killed_ms for row in again)
    # Those beyond the other worker's slots wait for a slot, not for the sweep.
    if engine_urls[0].kind == "sim":  # real vLLM on a few cores keeps all slots busy meanwhile
        assert waits[0] <= within_ms + 500, waits
    assert all(row.crashes == row.takes - 1 for row in again)
    ledger = await assert_identities(system)
    assert (ledger["accepted"], ledger["done"]) == (16, 16)


async def test_generation_of_ten_leases_runs_once(
    tmp_path: Path, engine_urls: list[EngineUnderTest], model: str
) -> None:
    """Renewal keeps a request while its worker lives, however long it runs."""
    # Real vLLM leaves the worker little of the processor: its lease is longer, and its context
    # ends soon after the first.
    sim = engine_urls[0].kind == "sim"
    lease_ms, leases, tokens, count = (600, 10, 500, 3) if sim else (6_000, 1, 1_900, 6)
    short = QUICK.model_copy(
        update={"lease_ms": lease_ms, "renew_ms": 150, "reclaim_ms": 200, "worker_ttl_ms": 9_000}
    )
    async with running(tmp_path, [engine_urls[0].url], producers=1, settings=short) as system:
        async with aiohttp.ClientSession() as client:
            ids = [
                await submit(client, system.producers[0], body_of(model, tokens, n))
                for n in range(count)
            ]

            async def ended() -> bool:
                return await all_done(system, ids)

            await until(ended, 120, "all end")
        for row in await shown(system, ids):
            ran_ms = row.ended_ms - row.taken_ms
            assert (row.takes, row.crashes) == (1, 0)
            assert ran_ms >= leases * short.lease_ms, ran_ms
        await assert_identities(system)


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_hangs_up_stops_the_engine(
    system: System, engine_urls: list[EngineUnderTest], model: str, stream: bool
) -> None:
    """Running: the engine's call is closed within 1 s, the request ends as cancelled.

    Real vLLM on a shared processor may take longer until its gauge says so.
    """
    within_s = 1 if engine_urls[0].kind == "sim" else 4
    body = body_of(model, 1_500) | {"stream": stream}

    async def one_runs() -> bool:
        return running_in(engine_urls) == 1

    async def none_runs() -> bool:
        return running_in(engine_urls) == 0

    async with aiohttp.ClientSession() as client:
        asking = asyncio.ensure_future(client.post(system.producers[0] + CHAT, json=body))
        await until(one_runs, 10, "the engine runs it")
        asking.cancel()
        if asking.done() and not asking.cancelled():
            asking.result().close()
    await until(none_runs, within_s, "the engine's call is closed")

    async def cancelled() -> bool:
        return (await system.status())["ledger"].get("cancelled") == 1

    await until(cancelled, 2, "the request is cancelled")
    await assert_identities(system)


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_hangs_up_leaves_the_queue(
    system: System, model: str, stream: bool
) -> None:
    """Queued: it ends as cancelled within 1 s; an asynchronous one goes on."""
    for worker in system.working:
        worker.stop()
    async with aiohttp.ClientSession() as client:
        durable = await submit(client, system.producers[0], body_of(model, 8))
        body = body_of(model, 8) | {"stream": stream}
        asking = asyncio.ensure_future(client.post(system.producers[0] + CHAT, json=body))

        async def waits() -> bool:
            return bool((await system.status())["queued"] == 2)

        async def left() -> bool:
            return bool((await system.status())["queued"] == 1)

        await until(waits, 5, "both wait")
        asking.cancel()
        await until(left, 1, "the synchronous one left")
    assert [row.state for row in await shown(system, [durable])] == ["queued"]
    assert (await assert_identities(system))["cancelled"] == 1


async def test_paused_worker_that_wakes_writes_nothing(
    system: System, engine_urls: list[EngineUnderTest], model: str
) -> None:
    """SIGSTOP past the lease: another worker runs it again; the first one's end is refused."""
    tokens = 200 if engine_urls[0].kind == "sim" else 1_500  # not through before it is paused
    first, second = system.working
    second.send(signal.SIGSTOP)
    async with aiohttp.ClientSession() as client:
        request_id = await submit(client, system.producers[0], body_of(model, tokens))

        async def runs() -> bool:
            return [row.state for row in await shown(system, [request_id])] == ["running"]

        await until(runs, 10, "the first worker runs it")
        first.send(signal.SIGSTOP)
        second.send(signal.SIGCONT)

        async def taken_again() -> bool:
            return [row.takes for row in await shown(system, [request_id])] == [2]

        await until(taken_again, 20, "the second worker took it")
        first.send(signal.SIGCONT)

        async def ended() -> bool:
            return await all_done(system, [request_id])

        await until(ended, 60, "it ends")
    row = (await shown(system, [request_id]))[0]
    assert (row.takes, row.crashes, row.attempts) == (2, 1, 0)
    head = json.loads(row.result.partition(b"\n")[0])
    assert head["usage"]["output"] == tokens
    assert (await assert_identities(system))["done"] == 1
