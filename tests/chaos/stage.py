"""The system under chaos: a server with an AOF, two producers, four workers, one engine."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from redis.asyncio import Redis
from tests.chaos.history import History
from tests.chaos.link import Link
from tests.chaos.processes import Process
from tests.servers import Server, start_server
from tests.vllm.rig import free_port

from forebay_shared.calls import Library, Operator
from forebay_shared.connect import connect
from forebay_shared.settings import PoolSettings

SETTINGS = PoolSettings(
    lease_ms=2_000,
    renew_ms=500,
    sweep_ms=250,
    reclaim_ms=500,
    worker_ttl_ms=4_000,
    backoff_ms=100,
    result_ttl_ms=86_400_000,
    classes=PoolSettings().classes,
)
"""Short leases, with the relations of the defaults; results outlive every run."""
GRACE_S = 3.0
SERVE_ON_S = 0.5
Make = Callable[[str, str, Sequence[str], str], Process]
"""Makes a process from name, module, arguments and probe."""
SLOTS = 8
SPEED = 0.4
"""Slow engines: what is killed shall hold something, at little cost of processor."""
# Written before it is answered, unless an fsync is under way: so the file is kept in memory.
PERSISTENT = ("--appendonly", "yes", "--appendfsync", "everysec")
ROLES: Mapping[str, tuple[str, ...]] = {
    "worker": ("w1", "w2", "w3", "w4"),
    "producer": ("p1", "p2"),
    "engine": ("e1",),
}
"""Workers w1 to w3 have engines of their own inside; w4 stands beside e1."""


@dataclass(slots=True)
class Stage:
    """What runs. `redis` goes to the server directly; the processes go through `links`."""

    folder: Path
    server: Server
    redis: Redis
    library: Library
    http: aiohttp.ClientSession
    processes: dict[str, Process] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    replicas: list[str] = field(default_factory=list)
    """Base URLs of the producers."""

    @property
    def operator(self) -> Operator:
        return Operator(self.library)

    @property
    def prefix(self) -> str:
        """What the names of all keys of the pool begin with."""
        return self.library.keys.layout.removesuffix("layout")

    async def raw(self, command: str, key: str, *arguments: str | int) -> Any:
        """One command on a key of the pool; its reply as redis-py shapes it."""
        call: Any = self.redis.execute_command  # has no types
        return await call(command, self.prefix + key, *arguments)

    def role(self, name: str) -> list[Process]:
        return [self.processes[one] for one in ROLES[name]]

    async def heal(self) -> None:
        """Undo every fault: all processes run and are ready, all links pass."""
        self.server.resume()
        for link in self.links.values():
            link.heal()
        for process in self.processes.values():
            process.send(signal.SIGCONT)
            if process.code is not None:
                process.start()
        await asyncio.gather(*[one.ready(self.http) for one in self.processes.values()])

    async def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        for link in self.links.values():
            link.close()
        await self.redis.aclose()
        self.server.stop()


@asynccontextmanager
async def standing(
    folder: Path, product: Path, seed: int, history: History
) -> AsyncIterator[Stage]:
    """The whole system, ready; all its processes end with the block."""
    data = Path(tempfile.mkdtemp(prefix="fb-chaos-", dir=_quick_folder()))
    sockets = Path(tempfile.mkdtemp(prefix="fb-", dir="/tmp"))
    server = start_server(data, extra=PERSISTENT)
    redis = connect(server.url)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        stage = Stage(folder, server, redis, Library(redis, settings=SETTINGS), http)
        try:
            await stage.library.start()
            await _set_up(stage, sockets, product, Random(f"{seed}/clocks"), history)
            yield stage
        finally:
            await stage.stop()
            shutil.rmtree(sockets)
            shutil.rmtree(data)


def _quick_folder() -> str:
    """Memory, where there is some: while a disk syncs, the server answers without writing."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"


async def _set_up(
    stage: Stage, sockets: Path, product: Path, dice: Random, history: History
) -> None:
    for name in (*ROLES["producer"], *ROLES["worker"]):
        stage.links[name] = Link(sockets / name, stage.server.url)
        await stage.links[name].open()

    def make(name: str, module: str, arguments: Sequence[str], probe: str) -> Process:
        log = stage.folder / f"{name}.log"
        return Process(name, module, arguments, probe, log, product, dice, history)

    for add in (_add_engines, _add_producers, _add_workers):
        add(stage, make)
    for process in stage.processes.values():
        process.start()
    await stage.heal()


def _add_engines(stage: Stage, make: Make) -> None:
    for name in ROLES["engine"]:
        port = free_port()
        arguments = ["--port", str(port), "--model", "sim", "--speed", str(SPEED)]
        module = "forebay_worker.engine.sim_http"
        stage.processes[name] = make(name, module, arguments, f"http://127.0.0.1:{port}/health")


def _add_producers(stage: Stage, make: Make) -> None:
    for name in ROLES["producer"]:
        port = free_port()
        arguments = ["--redis", stage.links[name].url, "--port", str(port)]
        arguments += ["--serve-on", str(SERVE_ON_S), "--grace", str(GRACE_S)]
        url = f"http://127.0.0.1:{port}"
        stage.replicas.append(url)
        stage.processes[name] = make(name, "forebay_producer", arguments, url + "/readyz")


def _add_workers(stage: Stage, make: Make) -> None:
    engine = stage.processes["e1"].probe.removesuffix("/health")
    for name in ROLES["worker"]:
        port = free_port()
        arguments = ["--redis", stage.links[name].url, "--slots", str(SLOTS)]
        arguments += ["--engine", engine if name == "w4" else "sim", "--sim-speed", str(SPEED)]
        arguments += ["--grace", str(GRACE_S), "--admin", f"127.0.0.1:{port}"]
        probe = f"http://127.0.0.1:{port}/readyz"
        stage.processes[name] = make(name, "forebay_worker", arguments, probe)
