"""This worker's place in the registry: what it serves, told again and again, and at a drain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from redis.asyncio import Redis

from forebay_shared.calls import Duties
from forebay_shared.calls.duties import Registration
from forebay_shared.calls.library import ITEMS_PER_CALL
from forebay_shared.connect import at
from forebay_shared.keys import POOLS
from forebay_worker.drain import Drain
from forebay_worker.engine import Engine, EngineError
from forebay_worker.gate import Gate
from forebay_worker.link import Link
from forebay_worker.rules import Rules

MOST_S = 10.0
TIMES_A_TTL = 3
"""Two registrations may be lost before a living worker is forgotten."""
MODELS_WAIT_S = 2.0


class Listing:
    """What the registry shows of this worker, put together from those who know it."""

    def __init__(self, gate: Gate, drain: Drain, engine: Engine, about: Mapping[str, str]) -> None:
        self._gate = gate
        self._drain = drain
        self._engine = engine
        self._about = about
        self._models: list[str] = []
        self._shown = False

    def show(self, models: Iterable[str]) -> None:
        """Tell models from now on: these, until the engine tells others."""
        self._models = list(models)
        self._shown = True

    async def now(self) -> Registration:
        """The registration of this moment; models as the engine last told them, once shown."""
        if self._shown:
            await self._ask_models()
        return Registration(
            worker=self._gate.worker,
            state="draining" if self._drain.started.is_set() else "serving",
            slots=self._gate.slots,
            classes=self._gate.classes,
            models=self._models,
            held=self._gate.held,
            about=self._about,
        )

    async def _ask_models(self) -> None:
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(MODELS_WAIT_S):
                self._models = (await self._engine.models())[:ITEMS_PER_CALL]


class Registry:
    """Registers, names the pool, and reads the settings again when their epoch has moved."""

    def __init__(
        self,
        duties: Duties,
        redis: Redis,
        pool: str,
        listing: Listing,
        drain: Drain,
        rules: Rules,
        link: Link,
    ) -> None:
        self._duties = duties
        self._pools = at(redis, POOLS)
        self._pool = pool
        self._listing = listing
        self._drain = drain
        self._rules = rules
        self._link = link
        self._left = False
        self._one_at_a_time = asyncio.Lock()

    async def once(self) -> None:
        """Register, and wait until the next time: at most 10 s, or the begin of a drain."""
        await self.register()
        pause_s = min(MOST_S, self._rules.settings.worker_ttl_ms / 1000 / TIMES_A_TTL)
        if self._drain.started.is_set():
            await asyncio.sleep(pause_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._drain.started.wait()

    def show(self, models: Iterable[str]) -> None:
        """Tell these models from the next registration on; none are told before."""
        self._listing.show(models)

    async def leave(self, worker: str) -> None:
        """Leave the registry for good: after a registration under way, so that none comes later."""
        self._left = True
        async with self._one_at_a_time:
            await self._link.ask("leave", lambda: self._duties.leave(worker))

    async def register(self) -> None:
        """Register now, unless this worker has left."""
        one = await self._listing.now()
        async with self._one_at_a_time:
            if self._left:
                return
            epoch = await self._link.ask("register", lambda: self._duties.register(one))
        if epoch != self._rules.epoch:
            await self._link.ask("settings", self._rules.read)
        await self._pools.zadd(POOLS, {self._pool: time.time()})
