"""Time in a process: durations only, never compared between hosts.

Every instant that two processes share is read from Redis (`TIME`) inside the function library.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock that can be waited on."""

    def now_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds of this clock."""


class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class ManualClock:
    """A clock that moves only when told to; for tests and simulations."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._moved = asyncio.Condition()

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, delay_s: float) -> None:
        due_s = self._now_s + delay_s
        async with self._moved:
            await self._moved.wait_for(lambda: self._now_s >= due_s)

    async def advance(self, by_s: float) -> None:
        """Move by `by_s` seconds and wake who is due."""
        async with self._moved:
            self._now_s += by_s
            self._moved.notify_all()
