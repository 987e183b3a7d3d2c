"""Producers that run in the test's own event loop, on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx
from openai import AsyncOpenAI

from forebay_producer.options import ServeOptions, Timings
from forebay_producer.serve import Producer

CHAT = "/v1/chat/completions"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without the machine's certificates, which take longer to load than most tests."""
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
QUICK = Timings(serve_on_s=0, grace_s=0.5, refresh_s=0.2, stale_s=1)


@dataclass(frozen=True)
class Running:
    """A producer, a plain client and an SDK that repeats nothing by itself."""

    url: str
    producer: Producer
    http: httpx.AsyncClient
    sdk: AsyncOpenAI

    async def ready(self) -> None:
        await until(self.producer.replica.is_ready)


async def until(holds: Callable[[], bool], within_s: float = 5) -> None:
    """Wait for a state that nothing signals."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def serving(
    redis_url: str, *, wait_ready: bool = True, **options: Any
) -> AsyncIterator[Running]:
    """A producer that serves while the block runs."""
    options.setdefault("timings", QUICK)
    producer = Producer(ServeOptions(redis_url, port=0, **options))
    url = await producer.start()
    hurry = asyncio.Event()
    hurry.set()
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=20, verify=NO_TLS) as http,
            httpx.AsyncClient(timeout=20, verify=NO_TLS) as inner,
            AsyncOpenAI(
                base_url=f"{url}/v1", api_key="any", max_retries=0, http_client=inner
            ) as sdk,
        ):
            running = Running(url, producer, http, sdk)
            if wait_ready:
                await running.ready()
            yield running
    finally:
        await producer.drain(hurry)
