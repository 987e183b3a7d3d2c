"""A worker of few lines, told by the test what to do with each request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from redis.exceptions import RedisError

from forebay_producer.supervise import end_tasks
from forebay_shared.calls import Duties, Emission, Ending, Grant, Leases, Library, Take
from forebay_shared.calls.duties import Registration
from forebay_shared.connect import connect, connect_blocking
from forebay_shared.ids import new_process_id
from forebay_shared.records import Result, Usage

CLASSES = ("critical", "high", "normal", "low", "background")
USAGE = Usage(prompt=3, output=2)

Script = Callable[["ScriptedWorker", Grant], Awaitable[None]]


class ScriptedWorker:
    """Takes whatever comes and runs `script` for it; `granted` and `orders` tell what happened."""

    def __init__(self, redis_url: str, script: Script, models: tuple[str, ...] = ("m",)) -> None:
        self.id = new_process_id()
        self.script = script
        self.models = models
        self.granted: list[Grant] = []
        self.orders: list[str] = []
        self.news = asyncio.Condition()
        self.redis = connect(redis_url)
        self._bells = connect_blocking(redis_url, 1)
        self._control = connect_blocking(redis_url, 1)
        self._library = Library(self.redis)
        self.leases = Leases(self._library)
        self._call = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._library.start()
        await self.register()
        for duty in (self._take_loop, self._control_loop):
            self._spawn(duty())

    async def register(self) -> None:
        one = Registration(self.id, "serving", 100, CLASSES, self.models, 0, {})
        await Duties(self._library).register(one)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_loop(self) -> None:
        bells = [self._library.keys.bell(name) for name in CLASSES]
        while True:
            try:
                await self._take()
                await self._bells.blpop(bells, timeout=1)
            except RedisError:
                await asyncio.sleep(0.05)  # the server is being restarted by the test

    async def _take(self) -> None:
        while True:
            self._call += 1
            free = dict.fromkeys(CLASSES, 100)
            taken = await self.leases.take(Take(self.id, self._call, 100, 100, free))
            if not taken.grants:
                return
            for grant in taken.grants:
                self._spawn(self.script(self, grant))
            async with self.news:
                self.granted += taken.grants
                self.news.notify_all()

    async def _control_loop(self) -> None:
        key = self._library.keys.control(self.id)
        while True:
            try:
                popped = await self._control.blpop([key], timeout=1)
            except RedisError:
                await asyncio.sleep(0.05)
                continue
            if popped:
                async with self.news:
                    self.orders.append(popped[1].decode())
                    self.news.notify_all()

    async def emit(self, grant: Grant, offset: int, *events: bytes) -> str:
        chunks = [(event, b"") for event in events]
        one = Emission(grant.request_id, grant.call, offset, USAGE, chunks)
        return (await self.leases.emit(self.id, [one]))[0]

    async def finish(self, grant: Grant, result: Result, offset: int = 0, *events: bytes) -> str:
        chunks = [(event, b"") for event in events]
        one = Ending(grant.request_id, grant.call, result, offset, chunks)
        return (await self.leases.finish(self.id, [one]))[0]

    async def wait_granted(self, count: int = 1, within_s: float = 5) -> list[Grant]:
        async with asyncio.timeout(within_s), self.news:
            await self.news.wait_for(lambda: len(self.granted) >= count)
        return self.granted

    async def wait_order(self, order: str, within_s: float = 5) -> None:
        async with asyncio.timeout(within_s), self.news:
            await self.news.wait_for(lambda: any(one.startswith(order) for one in self.orders))

    async def close(self) -> None:
        await end_tasks(list(self._tasks), 5)
        for client in (self.redis, self._bells, self._control):
            await client.aclose()


@contextlib.asynccontextmanager
async def working(
    redis_url: str, script: Script, models: tuple[str, ...] = ("m",)
) -> AsyncIterator[ScriptedWorker]:
    """A scripted worker that runs while the block does."""
    worker = ScriptedWorker(redis_url, script, models)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.close()
