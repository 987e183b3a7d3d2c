"""The system under a soak: a server, real worker processes with instant engines, one source."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from tests.flow.identities import PERMANENT
from tests.flow.processes import Child, until
from tests.servers import start_server
from tests.soak.mix import CLASSES, POOL
from tests.soak.stalls import SlowLog, Witness

from forebay_shared.calls import Library, Operator
from forebay_shared.connect import connect
from forebay_shared.keys import POOLS
from forebay_shared.settings import ClassSettings, PoolSettings

SETTINGS = PoolSettings(
    classes=tuple(
        ClassSettings(name=name, weight=8 >> rank, depth=100_000)
        for rank, name in enumerate(CLASSES)
    ),
    depth=100_000,
    backoff_ms=50,
    result_ttl_ms=1_000,
    tombstone_ms=1_000,
    idempotency_ttl_ms=1_000,
    dead_count=100,
)
"""Records live for two seconds, and the dead letters reach their bound in the first round."""
SLOTS = 64
BUSY_SHARE = 0.5
"""A machine with so many busy processes for each processor before the start is not ours alone."""
START_S = 30.0
STOP_S = 40.0
DRAIN_S = 60.0
EXPIRE_S = 20.0
CHECK_S = 0.05
MEMORY = ("used_memory", "used_memory_vm_functions", "used_memory_rss")


@dataclass(slots=True)
class Plant:
    """What runs."""

    url: str
    redis: Redis
    operator: Operator
    prefix: str
    judged: bool
    """Whether slow commands are judged: the processor has a witness, and the machine was ours."""
    witness: Witness
    slow_log: SlowLog
    workers: list[Child] = field(default_factory=list)

    async def send(self, first: int, count: int) -> dict[str, Any]:
        """Have a source send that many requests and follow them; what it counted."""
        command = [sys.executable, "-m", "tests.soak.source", self.url, str(first), str(count)]
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            said, _ = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
        if child.returncode != 0:
            raise RuntimeError(f"the source ended with {child.returncode}")
        counted: dict[str, Any] = json.loads(said)
        return counted

    async def until_drained(self) -> None:
        """Nothing queued or running."""

        async def drained() -> bool:
            status = await self.operator.status()
            return not status["queued"] and not status["running"]

        await until(drained, DRAIN_S, "drained", CHECK_S)

    async def until_expired(self) -> float:
        """Nothing of any request is left in memory; seconds that took."""

        async def expired() -> bool:
            kinds = {name.split(":")[0] for name in await self.names()}
            return not kinds & {"request", "result", "output", "idempotency"}

        return await until(expired, EXPIRE_S, "expired", CHECK_S)

    async def names(self) -> list[str]:
        """Names of all keys, without the pool's prefix."""
        found = [raw async for raw in self.redis.scan_iter(count=1_000)]
        return sorted(raw.decode().removeprefix(self.prefix) for raw in found)

    async def queues(self) -> dict[str, int]:
        """What the streams of the queue hold: the streams themselves, XLEN, XPENDING, consumers."""
        counts = dict.fromkeys(("queue streams", "entries", "pending", "consumers"), 0)
        for name in [one for one in await self.names() if one.startswith("queue:")]:
            key = self.prefix + name
            groups: Any = await self.redis.xinfo_groups(key)
            counts["queue streams"] += 1
            counts["entries"] += await self.redis.xlen(key)
            counts["pending"] += sum(group["pending"] for group in groups)
            counts["consumers"] += sum(group["consumers"] for group in groups)
        return counts

    async def kept(self) -> list[str]:
        """Names of keys without TTL that only work keeps."""
        names = [name for name in await self.names() if name not in PERMANENT | {POOLS}]
        return [name for name in names if await self.redis.ttl(self.prefix + name) == -1]

    async def memory(self) -> dict[str, int]:
        """Bytes by the server's own account, without the buffers of its clients."""
        info = await self.redis.info("memory")
        counts = {name: int(info[name]) for name in MEMORY if name in info}
        counts["used_memory"] -= int(info.get("mem_clients_normal", 0))
        return counts

    async def stop_workers(self) -> list[int | None]:
        """In order, all at once; their exit codes."""
        for worker in self.workers:
            worker.send(signal.SIGTERM)

        async def ended() -> bool:
            return all(worker.code is not None for worker in self.workers)

        await until(ended, STOP_S, "workers ended", CHECK_S)
        return [worker.code for worker in self.workers]


@asynccontextmanager
async def standing(folder: Path, workers: int) -> AsyncIterator[Plant]:
    """The whole system, ready; all its processes end with the block."""
    with start_server(folder) as server:
        redis = connect(server.url)
        library = Library(redis, POOL, SETTINGS)
        prefix = library.keys.layout.removesuffix("layout")
        quiet = os.getloadavg()[0] < BUSY_SHARE * (os.cpu_count() or 1)
        witness = await Witness.beside(server.pid)
        plant = Plant(
            server.url,
            redis,
            Operator(library),
            prefix,
            witness.stands and quiet,
            witness,
            SlowLog(redis),
        )
        try:
            await library.start()
            arguments = ["--redis", server.url, "--sim-profile", "zero", "--slots", str(SLOTS)]
            for number in range(workers):
                log = folder / f"worker-{number}.log"
                plant.workers.append(Child("forebay_worker", arguments, log))
            await _until_registered(plant)
            await plant.slow_log.open()
            yield plant
        finally:
            plant.slow_log.abandon()
            witness.kill()
            for worker in plant.workers:
                worker.kill()
            await redis.aclose()


async def _until_registered(plant: Plant) -> None:
    async def registered() -> bool:
        return len((await plant.operator.status())["workers"]) == len(plant.workers)

    await until(registered, START_S, "workers registered", CHECK_S)
