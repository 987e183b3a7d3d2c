"""The blocked read of the bells: wakes the take loop when work may have come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from forebay_shared.keys import Keys
from forebay_worker.link import Link
from forebay_worker.pace import Backoff, end
from forebay_worker.wake import Wake

BLOCK_S = 10.0


class Bells:
    """Reads the bells on a connection of its own, only while told to listen.

    `rung`: a bell was read, 10 s passed, or Redis could not be asked: look for work.
    """

    def __init__(self, redis: Redis, keys: Keys, link: Link, wake: Wake) -> None:
        self._redis = redis
        self._keys = keys
        self._link = link
        self._wake = wake
        self._backoff = Backoff()
        self._task: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._classes: list[str] = []
        self.rung = True  # at the start there may be work already

    def listen(self, classes: Sequence[str]) -> None:
        """Wait for the bells of exactly these classes, if not doing so already."""
        if list(classes) != self._classes:
            self.hush()
        if self._task is None:
            self._classes = list(classes)
            keys = [self._keys.bell(name) for name in classes]
            self._task = asyncio.create_task(self._read(keys), name="bells")

    def hush(self) -> None:
        """Stop waiting: whoever has a free slot shall hear the bells. Closes the connection.

        A bell that Redis has just handed to us is lost by that, until the sweep rings again.
        """
        if self._task is not None:
            self._ending = asyncio.create_task(end(self._task))  # kept: loops hold tasks weakly
            self._task = None
        self._classes = []

    def obeyed(self) -> None:
        """A take is made now: the bells heard so far are done with, later ones are not."""
        self.rung = False

    async def _read(self, keys: list[str]) -> None:
        try:
            await self._redis.blpop(keys, timeout=BLOCK_S)
        except (RedisError, OSError):
            # The take that follows says what is wrong; here it is enough not to spin.
            await asyncio.sleep(self._backoff.next_s())
        else:
            self._backoff.reset()
            self._link.answered()
        # A read that was to end may come to an answer before its cancel: also that is a bell.
        if self._task is asyncio.current_task():
            self._task = None
        self.rung = True
        self._wake.up()
