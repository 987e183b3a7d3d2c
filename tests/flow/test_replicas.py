"""Producers hold nothing: what one admitted, any other reads, streams and cancels."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from tests.flow.engines import EngineUnderTest
from tests.flow.identities import assert_identities
from tests.flow.processes import until
from tests.flow.system import System

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"


def body_of(model: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me about queues."}],
        "temperature": 0,
        **fields,
    }


async def submit(client: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> str:
    """Asynchronously; the path of the request."""
    async with client.post(url + CHAT, json=body, headers={"Prefer": "respond-async"}) as answer:
        assert answer.status == 202, await answer.text()
        return answer.headers["Location"]


async def test_read_through_the_other_replica(shared_system: System, model: str) -> None:
    one, other = shared_system.producers
    async with aiohttp.ClientSession() as client:
        path = await submit(client, one, body_of(model, max_tokens=8))
        async with client.get(f"{other}{path}?wait=20") as answer:
            seen = await answer.json()
    assert seen["state"] == "done", seen
    assert seen["id"] == path.rpartition("/")[2]
    await assert_identities(shared_system)


async def events_from(
    client: aiohttp.ClientSession, url: str, last: str | None
) -> list[tuple[str, str]]:
    """(id, data) of each event until the stream closes."""
    headers = {"Last-Event-ID": last} if last is not None else {}
    events, number = [], ""
    async with client.get(url, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"id: "):
                number = line[4:].strip().decode()
            elif line.startswith(b"data: "):
                events.append((number, line[6:].strip().decode()))
    return events


async def test_streamed_through_the_other_replica_from_any_event(
    shared_system: System, model: str
) -> None:
    """Reconnecting with Last-Event-ID to another replica misses nothing and repeats nothing."""
    one, other = shared_system.producers
    async with aiohttp.ClientSession() as client:
        path = await submit(
            client, one, body_of(model, max_tokens=200, ignore_eos=True, stream=True)
        )
        whole = await events_from(client, f"{other}{path}/events", None)
        later = await events_from(client, f"{one}{path}/events", whole[3][0])
    assert [event for event in whole if event not in later] == whole[:4]
    assert whole[4:] == later


async def test_cancelled_through_the_other_replica(
    shared_system: System, model: str, engine_urls: list[EngineUnderTest]
) -> None:
    """A running request ends as cancelled, and its engine call is closed within 1 s.

    Real vLLM on a shared processor may take longer until its gauge says so.
    """
    within_s = 1 if engine_urls[0].kind == "sim" else 4
    one, other = shared_system.producers
    long = body_of(model, max_tokens=1_500, ignore_eos=True)
    async with aiohttp.ClientSession() as client:
        path = await submit(client, one, long)

        async def runs() -> bool:
            return sum(engine.running() for engine in engine_urls) == 1

        async def closed() -> bool:
            return sum(engine.running() for engine in engine_urls) == 0

        await until(runs, 10, "the engine runs it")
        async with client.delete(other + path) as answer:
            assert (answer.status, (await answer.json())["state"]) == (200, "cancelled")
        await until(closed, within_s, "the engine's call is closed")
        async with client.get(one + path) as answer:
            assert (await answer.json())["state"] == "cancelled"
    await assert_identities(shared_system)


async def test_waiting_request_names_its_rank_and_reason(system: System, model: str) -> None:
    """With no worker alive a waiting request says so; cancelling it leaves nothing behind."""
    for worker in system.working:
        worker.stop()
    async with aiohttp.ClientSession() as client:
        paths = [await submit(client, system.producers[0], body_of(model)) for _ in range(3)]
        async with client.get(system.producers[1] + paths[2]) as answer:
            seen = await answer.json()
        assert (seen["state"], seen["rank"], seen["waits_for"]) == ("queued", 2, "worker")
        await asyncio.gather(*[client.delete(system.producers[1] + path) for path in paths])
    ledger = await assert_identities(system)
    assert ledger["cancelled"] == 3
