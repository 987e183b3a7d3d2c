"""A producer and a worker as processes, a server that keeps its data, and ways between them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from redis.exceptions import RedisError
from tests.faults.way import Way
from tests.flow.processes import Child, until
from tests.flow.system import QUICK, System
from tests.servers import Server, start_server

from forebay_shared.calls import Library, Shown
from forebay_shared.connect import connect
from forebay_shared.settings import PoolSettings

DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--enable-debug-command", "yes")
SNAPSHOT = "dump.rdb"
"""Written by nobody, beside the append-only file, but where a test asks for it."""
SLOTS = 8
WELL_S = 10.0


@dataclass(slots=True)
class Scene(System):
    """A System whose `ways[0]` is the producer's to Redis, and `ways[1]` the worker's."""

    server: Server
    ways: list[Way] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The producer's."""
        return self.producers[0]

    @property
    def producer(self) -> Child:
        return self.serving[0]

    @property
    def worker(self) -> Child:
        return self.working[0]

    async def well(self) -> None:
        """Returns when the producer is ready and the worker is registered as serving.

        Fails where a process has ended.
        """
        async with aiohttp.ClientSession() as http:

            async def ready() -> bool:
                for child in (*self.serving, *self.working):
                    assert child.code is None, child.tail()
                try:
                    rows = (await self.status())["workers"]
                except RedisError:
                    return False
                async with http.get(f"{self.url}/readyz") as answer:
                    serving = [row for row in rows if row["state"] == "serving"]
                    return answer.status == 200 and len(serving) == len(self.working)

            await until(ready, WELL_S, "all are well")

    async def show(self, request_id: str) -> Shown:
        shown = await self.intake.show(request_id)
        assert shown is not None, f"{request_id} is not known"
        return shown

    async def until_state(self, request_id: str, state: str, within_s: float = 5) -> Shown:
        """The record once it is in this state."""

        async def holds() -> bool:
            return (await self.show(request_id)).state == state

        await until(holds, within_s, f"{request_id} is {state}")
        return await self.show(request_id)


@asynccontextmanager
async def playing(
    folder: Path,
    *,
    extra: Sequence[str] = (),
    settings: PoolSettings = QUICK,
    work: Sequence[str] = (),
) -> AsyncIterator[Scene]:
    """The scene, ready; all its processes end with the block."""
    server = start_server(folder, extra=(*DURABLE, *extra))
    redis = connect(server.url)
    scene = Scene(folder, server, redis, Library(redis, settings=settings))
    try:
        await scene.library.start()
        for _ in range(2):
            scene.ways.append(Way(server.url))
            await scene.ways[-1].open()
        first, second = (("--redis", way.url) for way in scene.ways)
        serve = ("--serve-on", "0.1")
        await asyncio.gather(
            scene.add_producer(*serve, *first),
            scene.add_worker("sim", "--slots", str(SLOTS), *second, *work),
        )
        yield scene
    finally:
        await scene.stop()
        for way in scene.ways:
            way.close()


class Watched:
    """What a process logs and how much processor it takes from a moment on."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._size = child.log.stat().st_size
        self._cpu_s = _cpu_s(child.pid)

    def events(self) -> list[dict[str, Any]]:
        """The lines logged since then."""
        return list(self._events())

    def _events(self) -> Iterator[dict[str, Any]]:
        with self._child.log.open("rb") as log:
            log.seek(self._size)
            for line in log.read().splitlines():
                yield json.loads(line)

    def cpu_s(self) -> float:
        """Seconds of processor since then."""
        return _cpu_s(self._child.pid) - self._cpu_s


def _cpu_s(pid: int) -> float:
    """User and system time of a process; 0 where the system does not tell."""
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        return 0.0
    fields = path.read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def errors(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was logged as an error."""
    return [one for one in events if one["level"] == "error"]
