"""A rolling restart of producers under load: clients that never repeat see no error."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
import pytest
from tests.producer.running import BODY, CHAT, QUICK, until
from tests.producer.scripted import ScriptedWorker, working
from tests.producer.scripts import answer

from forebay_producer.options import ServeOptions, Timings
from forebay_producer.serve import Producer
from forebay_shared.calls import Grant

pytestmark = pytest.mark.anyio
TIMINGS = Timings(serve_on_s=0.6, grace_s=10, refresh_s=QUICK.refresh_s)
PROBE_S = 0.1


class Balancer:
    """Sends each request to a replica whose last probe was good, as a load balancer does."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.ready: list[str] = []
        self._next = 0

    async def probe(self, http: httpx.AsyncClient) -> None:
        while True:
            ready = []
            for url in self.urls:
                try:
                    good = (await http.get(f"{url}/readyz")).status_code == 200
                except httpx.TransportError:
                    good = False
                ready += [url] if good else []
            self.ready = ready
            await asyncio.sleep(PROBE_S)

    def pick(self) -> str:
        self._next += 1
        return self.ready[self._next % len(self.ready)]


async def test_no_client_notices_a_rolling_restart(redis_url: str) -> None:
    async def slow_answer(worker: ScriptedWorker, grant: Grant) -> None:
        await asyncio.sleep(0.3)
        await answer(worker, grant)

    balancer, outcomes, stop = Balancer(), Counter[str](), asyncio.Event()

    async def client(http: httpx.AsyncClient, body: dict[str, object]) -> None:
        while not stop.is_set():
            reply = await http.post(balancer.pick() + CHAT, json=body)
            whole = reply.content.endswith((b"[DONE]\n\n", b"}"))
            outcomes[f"{reply.status_code} {whole}"] += 1

    async def start() -> Producer:
        producer = Producer(ServeOptions(redis_url, port=0, timings=TIMINGS))
        url = await producer.start()
        balancer.urls.append(url)
        await until(lambda: url in balancer.ready)
        return producer

    async with working(redis_url, slow_answer), httpx.AsyncClient(timeout=20) as http:
        probing = asyncio.create_task(balancer.probe(http))
        old = await start()
        bodies: list[dict[str, object]] = [BODY, {**BODY, "stream": True}]
        clients = [asyncio.create_task(client(http, bodies[n % 2])) for n in range(8)]
        for _ in range(2):
            new = await start()
            await old.drain(asyncio.Event())
            old = new
        stop.set()
        await asyncio.gather(*clients)
        probing.cancel()
        await old.drain(asyncio.Event())
    print(dict(outcomes))
    assert set(outcomes) == {"200 True"}
    assert outcomes["200 True"] > 30
