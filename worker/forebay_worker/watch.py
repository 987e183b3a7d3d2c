"""Watching the engine: its load teaches the capacity, its health opens and closes the gate."""

from __future__ import annotations

import asyncio

from forebay_shared.metrics import Metrics
from forebay_worker.capacity import Capacity
from forebay_worker.engine import Engine, EngineError
from forebay_worker.pace import Backoff
from forebay_worker.pulse import Pulse
from forebay_worker.runs import Runs
from forebay_worker.wake import Wake
from forebay_worker.wedge import Wedge

POLL_S = 0.25
LOAD_WAIT_S = 2.0


class Watch:
    """Looks at the engine every 0.25 s, and less often, up to each second, while it is down."""

    def __init__(
        self,
        engine: Engine,
        capacity: Capacity,
        pulse: Pulse,
        wedge: Wedge,
        runs: Runs,
        wake: Wake,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._capacity = capacity
        self._pulse = pulse
        self._wedge = wedge
        self._runs = runs
        self._wake = wake
        self._metrics = metrics
        self._down = Backoff(POLL_S, 1.0)

    async def once(self) -> None:
        """One look, and the pause after it."""
        if not self._pulse.up:
            if not await self._pulse.check():
                self._wedge.look()
                await asyncio.sleep(self._down.next_s())
                return
            self._down.reset()
        await self.look()
        await asyncio.sleep(POLL_S)

    async def look(self) -> None:
        """Read the engine's load; where that fails, its health."""
        try:
            async with asyncio.timeout(LOAD_WAIT_S):
                load = await self._engine.load()
        except (EngineError, TimeoutError):
            await self._pulse.check()
            return
        before = self._capacity.limit
        self._capacity.polled(load, self._runs.peak())
        self._metrics.set("forebay_slots", self._capacity.limit)
        self._metrics.set("forebay_held", len(self._runs))
        if self._capacity.limit > before:
            self._wake.up()
