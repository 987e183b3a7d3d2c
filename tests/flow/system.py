"""A whole Forebay: real servers, producer processes, worker processes, engines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from redis.asyncio import Redis
from tests.flow.deployments import Deployment, deployments
from tests.flow.processes import Child, until
from tests.vllm.rig import free_port

from forebay_shared.calls import Intake, Library, Operator
from forebay_shared.connect import connect
from forebay_shared.keys import Keys
from forebay_shared.settings import PoolSettings

START_S = 20.0
POOL = "default"
QUICK = PoolSettings(
    lease_ms=1_500,
    renew_ms=400,
    sweep_ms=200,
    reclaim_ms=400,
    worker_ttl_ms=3_000,
    backoff_ms=50,
    classes=PoolSettings().classes,
)
"""Leases short enough for a test, with the relations of the defaults."""
UNHURRIED = QUICK.model_copy(update={"lease_ms": 6_000, "renew_ms": 1_000, "worker_ttl_ms": 9_000})
"""For real engines, which on few cores leave the workers little time to renew in."""


@dataclass(slots=True)
class System:
    """What runs; `producers` are base URLs without path, in the order of their processes."""

    folder: Path
    server: Deployment
    redis: Redis
    library: Library
    producers: list[str] = field(default_factory=list)
    serving: list[Child] = field(default_factory=list)
    working: list[Child] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def intake(self) -> Intake:
        return Intake(self.library)

    async def status(self) -> dict[str, Any]:
        return await Operator(self.library).status()

    async def add_producer(self, *options: str) -> str:
        """One more replica, ready; its base URL."""
        port = free_port()
        log = self.folder / f"producer-{next(self._numbers)}.log"
        arguments = ["--redis", self.server.url, "--port", str(port), *options]
        child = Child("forebay_producer", arguments, log)
        url = f"http://127.0.0.1:{port}"
        self.serving.append(child)
        self.producers.append(url)
        async with aiohttp.ClientSession() as client:

            async def ready() -> bool:
                assert child.code is None, child.tail()
                try:
                    async with client.get(f"{url}/readyz") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await until(ready, START_S, f"producer ready: {log}")
        return url

    async def know(self, model: str) -> None:
        """Wait until every producer lists the model."""
        async with aiohttp.ClientSession() as client:
            for url in self.producers:

                async def listed(url: str = url) -> bool:
                    async with client.get(f"{url}/v1/models") as answer:
                        return model in [one["id"] for one in (await answer.json())["data"]]

                await until(listed, START_S, f"{url} lists {model}")

    async def add_worker(self, engine: str, *options: str) -> Child:
        """One more worker beside `engine`, registered."""
        log = self.folder / f"worker-{next(self._numbers)}.log"
        arguments = ["--redis", self.server.url, "--engine", engine, *options]
        child = Child("forebay_worker", arguments, log)
        self.working.append(child)

        async def registered() -> bool:
            assert child.code is None, child.tail()
            about = [worker["about"] for worker in (await self.status())["workers"]]
            return str(child.pid) in [str(one.get("pid")) for one in about]

        await until(registered, START_S, f"worker registered: {log}")
        return child

    async def stop(self) -> None:
        for child in (*self.serving, *self.working):
            if child.code is None:
                child.kill()
        await self.redis.aclose()
        deployments.give_back(self.server)


@asynccontextmanager
async def running(
    folder: Path,
    engines: Sequence[str] = (),
    *,
    producers: int = 2,
    settings: PoolSettings = QUICK,
    slots: int = 8,
    server: Deployment | None = None,
) -> AsyncIterator[System]:
    """A system with one worker per engine; all its processes end with the block.

    On `server`, else on one of the session's kind.
    """
    server = server or deployments.take(folder)
    redis = connect(server.url, key=Keys(POOL).layout)
    system = System(folder, server, redis, Library(redis, POOL, settings))
    try:
        await system.library.start()
        replicas = [system.add_producer() for _ in range(producers)]
        workers = [system.add_worker(engine, "--slots", str(slots)) for engine in engines]
        await asyncio.gather(*replicas, *workers)
        yield system
    finally:
        await system.stop()
