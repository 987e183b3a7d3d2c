"""The system under chaos: a server with an AOF, two producers, four workers, their engines."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import aiohttp
from redis.asyncio import Redis
from tests.chaos.engines import VllmPlace
from tests.chaos.history import History
from tests.chaos.library_copy import copy_product, other_release, product_in
from tests.chaos.link import Link
from tests.chaos.processes import START_S, NotReady, Place, Process, until_ready
from tests.chaos.scene import PRODUCERS, SCENES, WORKERS, Scene
from tests.servers import Server, start_server
from tests.vllm.rig import free_port

from forebay_shared.calls import Library, Operator
from forebay_shared.connect import connect

GRACE_S = 3.0
SERVE_ON_S = 0.5
Make = Callable[[str, str, Sequence[str], str], Place]
"""Makes a process from name, module, arguments and probe."""
SPEED = 0.4
"""Slow engines: what is killed shall hold something, at little cost of processor."""
Fsync = Literal["everysec", "always"]
SPARE_MB = 512
"""Below so much free memory `/dev/shm` is no place for an append-only file."""


@dataclass(frozen=True, slots=True)
class Options:
    """`length_s`: of the faults and the load. `product`: the checkout whose code runs.

    `fsync`: of the append-only file; with `always` it is on the disk. `mixed`: half of the lives
    run another release of the product beside it.
    """

    seed: int
    length_s: float
    product: Path
    scene: Scene = SCENES["sim"]
    fsync: Fsync = "everysec"
    mixed: bool = True
    only: tuple[str, ...] = ()


@dataclass(slots=True)
class Stage:
    """What runs. `redis` goes to the server directly; the processes go through `links`."""

    folder: Path
    scene: Scene
    history: History
    server: Server
    redis: Redis
    library: Library
    http: aiohttp.ClientSession
    processes: dict[str, Place] = field(default_factory=dict)
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

    def role(self, name: str) -> list[Place]:
        return [self.processes[one] for one in self.scene.roles[name]]

    async def heal(self) -> None:
        """Undo every fault: all processes run and are ready, all links pass."""
        self.server.resume()
        for link in self.links.values():
            link.heal()
        for process in self.processes.values():
            process.send(signal.SIGCONT)
            if process.code is not None:
                process.start()
        await asyncio.gather(*[self.until_ready(one) for one in self.processes.values()])

    async def until_ready(self, place: Place) -> None:
        """Wait until it serves; write it down where it does not in time."""
        try:
            await until_ready(place, self.http, START_S[self.scene.engine])
        except NotReady as error:
            self.history.write("unready", name=place.name, why=str(error))

    async def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        for link in self.links.values():
            link.close()
        await self.redis.aclose()
        self.server.stop()


@asynccontextmanager
async def standing(folder: Path, options: Options, history: History) -> AsyncIterator[Stage]:
    """The whole system, ready; all its processes end with the block."""
    data = Path(tempfile.mkdtemp(prefix="fb-chaos-", dir=_data_place(folder, options.fsync)))
    sockets = Path(tempfile.mkdtemp(prefix="fb-", dir="/tmp"))
    server = start_server(data, extra=("--appendonly", "yes", "--appendfsync", options.fsync))
    redis, scene = connect(server.url), options.scene
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        library = Library(redis, settings=scene.settings)
        stage = Stage(folder, scene, history, server, redis, library, http)
        try:
            await library.start()
            await _set_up(stage, sockets, options)
            yield stage
        finally:
            await stage.stop()
            shutil.rmtree(sockets)
            shutil.rmtree(data)


def _data_place(folder: Path, fsync: Fsync) -> Path:
    """The disk where each answer waits for it, else memory, where there is enough.

    While a disk syncs with `everysec`, the server answers without writing, and what it answered
    then would die with it: that is known and no finding.
    """
    memory = Path("/dev/shm")
    if fsync == "always" or not memory.is_dir():
        return folder
    return memory if shutil.disk_usage(memory).free > SPARE_MB << 20 else folder


async def _set_up(stage: Stage, sockets: Path, options: Options) -> None:
    for name in (*PRODUCERS, *WORKERS):
        stage.links[name] = Link(sockets / name, stage.server.url)
        await stage.links[name].open()
    make = _maker(stage, options)
    for add in (_add_engines, _add_producers, _add_workers):
        add(stage, make)
    for process in stage.processes.values():
        process.start()
    await stage.heal()


def _maker(stage: Stage, options: Options) -> Make:
    dice = Random(f"{options.seed}/lives")
    # As it is now, whatever is written in the checkout while this runs.
    product = copy_product(options.product, stage.folder / "product")
    products = [product_in(product)]
    if options.mixed:
        products.append(other_release(product, stage.folder / "other"))

    def make(name: str, module: str, arguments: Sequence[str], probe: str) -> Place:
        log = stage.folder / f"{name}.log"
        return Process(name, module, arguments, probe, log, products, dice, stage.history)

    return make


def _add_engines(stage: Stage, make: Make) -> None:
    for name in stage.scene.engines:
        if stage.scene.engine == "vllm":
            place: Place = VllmPlace(name, stage.folder, stage.scene.model, stage.history)
        else:
            port = free_port()
            arguments = ["--port", str(port), "--model", "sim", "--speed", str(SPEED)]
            module = "forebay_worker.engine.sim_http"
            place = make(name, module, arguments, f"http://127.0.0.1:{port}/health")
        stage.processes[name] = place


def _add_producers(stage: Stage, make: Make) -> None:
    for name in PRODUCERS:
        port = free_port()
        arguments = ["--redis", stage.links[name].url, "--port", str(port)]
        arguments += ["--serve-on", str(SERVE_ON_S), "--grace", str(GRACE_S)]
        url = f"http://127.0.0.1:{port}"
        stage.replicas.append(url)
        stage.processes[name] = make(name, "forebay_producer", arguments, url + "/readyz")


def _add_workers(stage: Stage, make: Make) -> None:
    for name in WORKERS:
        port = free_port()
        arguments = ["--redis", stage.links[name].url, "--slots", str(stage.scene.slots)]
        arguments += ["--engine", _engine_of(stage, name), "--sim-speed", str(SPEED)]
        arguments += ["--grace", str(GRACE_S), "--admin", f"127.0.0.1:{port}"]
        probe = f"http://127.0.0.1:{port}/readyz"
        stage.processes[name] = make(name, "forebay_worker", arguments, probe)


def _engine_of(stage: Stage, worker: str) -> str:
    """Its base URL, or `sim` for one inside the worker."""
    beside = stage.scene.beside.get(worker)
    return stage.processes[beside].probe.removesuffix("/health") if beside else "sim"
