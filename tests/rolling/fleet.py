"""Two producers and three workers, replaced one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import aiohttp
from tests.flow.processes import Child, until
from tests.vllm.rig import free_port

PRODUCERS, WORKERS = 2, 3
START_S = 30.0
SERVE_ON_S = 0.5
"""Several probes of the balancer."""
PRODUCER_GRACE_S, WORKER_GRACE_S = 20.0, 5.0
STUCK_S = 60.0
"""A process that has not left so long after its grace never will, however busy the machine."""
SLOTS = 8


@dataclass(slots=True)
class Post:
    """One place for a process; its address outlives it. `drains_s` are those of all its lives."""

    name: str
    module: str
    arguments: list[str]
    probe: str
    log: Path
    grace_s: float
    child: Child | None = None
    codes: list[int] = field(default_factory=list)
    drains_s: list[float] = field(default_factory=list)

    async def start(self, http: aiohttp.ClientSession) -> None:
        """Begin a life; returns when its probe says ready."""
        self.child = child = Child(self.module, self.arguments, self.log)

        async def ready() -> bool:
            assert child.code is None, child.tail()
            try:
                async with http.get(self.probe) as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await until(ready, START_S, f"{self.name} is ready: {self.log}")

    async def drain(self) -> None:
        """SIGTERM, and wait until it has gone by itself."""
        assert self.child is not None
        began_s = monotonic()
        code = await asyncio.to_thread(self.child.stop, self.grace_s + STUCK_S)
        self.drains_s.append(monotonic() - began_s)
        self.codes.append(code)

    def kill(self) -> None:
        if self.child is not None and self.child.code is None:
            self.child.kill()

    def complaints(self) -> list[str]:
        """Lines of its log that tell of an error."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [one for one in lines if '"level": "error"' in one or "Traceback" in one]


class Fleet:
    """All posts. `roll` replaces each process once, producers and workers side by side."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.producers = [_producer(n, redis_url, folder) for n in range(PRODUCERS)]
        self.workers = [_worker(n, redis_url, folder) for n in range(WORKERS)]

    @property
    def posts(self) -> list[Post]:
        return [*self.producers, *self.workers]

    @property
    def replicas(self) -> list[str]:
        """Base URLs of the producers."""
        return [post.probe.removesuffix("/readyz") for post in self.producers]

    async def start(self, http: aiohttp.ClientSession) -> None:
        await asyncio.gather(*(post.start(http) for post in self.posts))

    async def roll(self, http: aiohttp.ClientSession) -> None:
        """Replace every process: of each kind one at a time, as deploys do."""
        await asyncio.gather(_replace(self.producers, http), _replace(self.workers, http))

    def stop(self) -> None:
        for post in self.posts:
            post.kill()


async def _replace(posts: Iterable[Post], http: aiohttp.ClientSession) -> None:
    for post in posts:
        await post.drain()
        await post.start(http)


def _producer(number: int, redis_url: str, folder: Path) -> Post:
    name, port = f"producer {number + 1}", free_port()
    arguments = ["--redis", redis_url, "--port", str(port)]
    arguments += ["--serve-on", str(SERVE_ON_S), "--grace", str(PRODUCER_GRACE_S)]
    return _post(name, "forebay_producer", arguments, port, folder, PRODUCER_GRACE_S + SERVE_ON_S)


def _worker(number: int, redis_url: str, folder: Path) -> Post:
    name, port = f"worker {number + 1}", free_port()
    arguments = ["--redis", redis_url, "--engine", "sim", "--admin", f"127.0.0.1:{port}"]
    arguments += ["--slots", str(SLOTS), "--grace", str(WORKER_GRACE_S)]
    return _post(name, "forebay_worker", arguments, port, folder, WORKER_GRACE_S)


def _post(
    name: str, module: str, arguments: list[str], port: int, folder: Path, grace_s: float
) -> Post:
    log = folder / f"{name.replace(' ', '-')}.log"
    return Post(name, module, arguments, f"http://127.0.0.1:{port}/readyz", log, grace_s)
