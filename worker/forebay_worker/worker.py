"""The worker process: start, serve until it has drained, stop.

Start                                        Stop (from the first drain request)
  1 admin listener: tells that we come up      1 the gate closes: nothing new is taken
  2 engine: its client, not its health         2 runs end, or are given back after the grace
  3 library: Redis answers and can serve       3 the registry forgets us
  4 settings, and the classes to serve         4 duties end
  5 duties that keep what will be granted      5 engine, so that nothing runs for nobody
  6 the take loop, last: nothing is granted    6 admin listener
    before its lease can be kept               7 connections
  7 the engine, once it is well, joins the
    pool: nothing is taken before
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from forebay_shared.calls import Grant
from forebay_shared.calls.start import start_library
from forebay_shared.connect import redis_away, safe_url, why_unusable
from forebay_shared.errors import Unusable
from forebay_shared.logs import event, failure
from forebay_shared.settings import PoolSettings
from forebay_worker.drain import AFTER_GRACE_S, LEAVE_S, run_dry
from forebay_worker.engine import Engine
from forebay_worker.engine.openai import OpenAIEngine
from forebay_worker.engine.sim import SimEngine
from forebay_worker.options import WorkOptions
from forebay_worker.pace import Backoff, end, go_on
from forebay_worker.parts import Parts

DONE, UNUSABLE = 0, 1


class Worker(Parts):
    """One worker. `serve` runs it; `drain.request` lets it end."""

    def __init__(
        self, options: WorkOptions, engine: Engine, settings: PoolSettings | None = None
    ) -> None:
        super().__init__(options, engine, settings)
        self.duties_running: list[asyncio.Task[None]] = []
        self.taker.start = self._granted
        self.serving = asyncio.Event()

    async def serve(self) -> int:
        """Start, serve until drained, and stop; the exit code.

        Raises Unusable where Redis, the settings or the pool's models do not let it serve, OSError
        where the admin address cannot be had.
        """
        try:
            if await self._unless_drained(self._start()):
                await self._serve()
        finally:
            await self._close()
        event("stopped")
        return DONE

    async def _unless_drained(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do `work`; False where a drain was requested before that was done."""
        start = asyncio.create_task(work, name="start")
        drained = asyncio.create_task(self.drain.started.wait(), name="drain")
        try:
            await asyncio.wait([start, drained], return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                start.result()
            return start.done()
        finally:
            for task in (start, drained):
                task.cancel()
            await asyncio.wait([start, drained])

    async def _serve(self) -> None:
        try:
            await self._unless_drained(self.join.run())
        except Unusable:
            await self._leave()
            raise
        await self.drain.started.wait()
        self.wake.up()
        if not await run_dry(self.drain, self.runs, self.taker.idle, self.options.grace_s):
            event("left behind", held=len(self.runs))
        await self._leave()

    async def _start(self) -> None:
        if self.options.admin is not None:
            await self.health.listen(self.options.admin)
        await self.engine.start()
        await self._first_contact()
        await self.link.until_answered("settings", self.rules.read)
        if unknown := self.rules.unknown_classes():
            raise Unusable(f"the pool has no class {', '.join(unknown)}")
        for name, once in self._duties():
            self.duties_running.append(asyncio.create_task(go_on(name, once), name=name))
        event("serving", worker=self.id, pool=self.options.pool, classes=self.rules.classes)
        self.serving.set()

    def _duties(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """In the order of their start."""
        return [
            ("control", self.control.once),
            ("renew", self.keeper.once),
            ("emit", self.emitter.once),
            ("sweep", self.sweeper.once),
            ("watch", self.watch.once),
            ("register", self.registry.once),
            ("eviction", self.eviction.once),
            ("take", self.taker.once),
        ]

    async def _first_contact(self) -> None:
        """Wait for Redis as long as it takes; a refused login is for the operator to mend."""
        backoff = Backoff()
        while True:
            try:
                return await self.link.ask("start", lambda: start_library(self.library))
            except Exception as error:
                if why := why_unusable(error):
                    where = safe_url(self.options.redis)
                    raise Unusable(f"{where} cannot be used: {why}") from None
                if not redis_away(error):
                    raise
                await asyncio.sleep(backoff.next_s())

    def _granted(self, grant: Grant) -> None:
        self.executor.start(grant, recalled=self.drain.started.is_set())

    async def _leave(self) -> None:
        """Leave the registry. What could not be handed over is reclaimed."""
        try:
            async with asyncio.timeout(LEAVE_S / 2):
                await self.registry.leave(self.id)
        except Exception as error:  # noqa: BLE001  the registry forgets us by itself, later
            if not (redis_away(error) or isinstance(error, TimeoutError)):
                failure("leave failed", error)

    async def _close(self) -> None:
        runs = [run.task for run in self.runs.held() if run.task is not None]
        self.bells.hush()
        clients = (self.redis, self.bells_redis, self.control_redis)
        closings = [self.engine.close(), self.health.close(), *(one.aclose() for one in clients)]
        closings += [end(task) for task in (*self.duties_running, *runs)]
        closing = asyncio.gather(*closings, return_exceptions=True)
        await asyncio.wait([closing], timeout=LEAVE_S / 2)


def make_engine(options: WorkOptions) -> Engine:
    """The engine that the options name. Raises ValueError for one that cannot be."""
    if options.engine == "sim":
        sim = options.sim
        return SimEngine(sim.profile, sim.models, sim.seed, sim.speed)
    return OpenAIEngine(options.engine, options.engine_key)


def run(options: WorkOptions) -> int:
    """Work in this process until a signal or an order drains it; the exit code.

    SIGTERM and SIGINT drain, a second one hurries. Raises ValueError for options that cannot be.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_run(options))
        except (Unusable, OSError) as error:
            event("cannot work", logging.ERROR, reason=str(error))
            return UNUSABLE


async def _run(options: WorkOptions) -> int:
    worker = Worker(options, make_engine(options))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.drain.request, signal.Signals(number).name)
    guard = asyncio.create_task(_be_gone_on_time(worker), name="guard")
    try:
        return await worker.serve()
    finally:
        guard.cancel()


async def _be_gone_on_time(worker: Worker) -> None:
    """Ends the process hard should closing hang, as in a name lookup that nobody can cancel."""
    await worker.drain.started.wait()
    _exit_after(worker.options.grace_s + AFTER_GRACE_S)
    await worker.drain.hurry.wait()
    _exit_after(AFTER_GRACE_S)


def _exit_after(wait_s: float) -> None:
    timer = threading.Timer(wait_s, os._exit, [DONE])
    timer.daemon = True
    timer.start()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return cast("Callable[[], asyncio.AbstractEventLoop]", uvloop.new_event_loop)
