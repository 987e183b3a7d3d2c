"""What this worker knows of Redis: whether it answers, since when, and how often it was asked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from forebay_shared.connect import Unconfirmed, redis_away, redis_full
from forebay_shared.logs import event
from forebay_shared.metrics import Metrics
from forebay_worker.pace import Backoff

Reply = TypeVar("Reply")


class Link:
    """Passes calls to Redis on and notes how they ended; logs only when that changes."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._up: bool | None = None
        self._answered_s = float("-inf")

    @property
    def up(self) -> bool:
        """Whether the last call was answered."""
        return bool(self._up)

    @property
    def silent_s(self) -> float:
        """Seconds since Redis last answered; infinite before the first time."""
        return time.monotonic() - self._answered_s

    async def ask(self, step: str, call: Callable[[], Awaitable[Reply]]) -> Reply:
        """Make one call; its errors go to the caller."""
        self._metrics.count("forebay_redis_calls_total", step=step)
        try:
            reply = await call()
        except Exception as error:
            if redis_away(error) and not isinstance(error, Unconfirmed):
                self._note(False, type(error).__name__)
            raise
        self.answered()
        return reply

    async def until_answered(self, step: str, call: Callable[[], Awaitable[Reply]]) -> Reply:
        """Make the same call until Redis answers; while it is away or full, pause ≤ 1 s between.

        Likewise where replicas shall have it and do not, which is told once. Other errors go to
        the caller. Only for calls that may be repeated.
        """
        backoff, told = Backoff(), False
        while True:
            try:
                return await self.ask(step, call)
            except Exception as error:
                if not (redis_away(error) or redis_full(error)):
                    raise
                if isinstance(error, Unconfirmed) and not told:
                    told = True
                    event("replicas away", logging.WARNING, step=step, why=str(error))
                await asyncio.sleep(backoff.next_s())

    def answered(self) -> None:
        """Redis has just answered, here or to a blocked read."""
        self._answered_s = time.monotonic()
        if not self._up:
            self._note(True, "")

    def _note(self, up: bool, error: str) -> None:
        if up == self._up:
            return
        self._up = up
        self._metrics.set("forebay_redis_up", float(up))
        if up:
            event("redis answers")
        else:
            event("redis away", logging.WARNING, error=error)
