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
            self._task = asyncio.create_task(self._read(self._ending), name="bells")

    def hush(self) -> None:
        """Stop waiting: whoever has a free slot shall hear the bells. Closes the connection.

        A bell that Redis has just handed to us is lost by that, until the sweep rings again.
        """
        if self._task is not None:
            self._ending = asyncio.create_task(_end(self._task, self._ending))
            self._task = None
        self._classes = []

    def obeyed(self) -> None:
        """A take is made now: the bells heard so far are done with, later ones are not."""
        self.rung = False

    async def _read(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])  # there is one connection
        keys = [self._keys.bell(name) for name in self._classes]
        try:
            await self._redis.blpop(keys, timeout=BLOCK_S)
        except (RedisError, OSError):
            # The take that follows says what is wrong; here it is enough not to spin.
            await asyncio.sleep(self._backoff.next_s())
        else:
            self._backoff.reset()
            self._link.answered()
        self._task = None
        self.rung = True
        self._wake.up()


async def _end(task: asyncio.Task[None], before: asyncio.Task[None] | None) -> None:
    """End a read, and return when it and those ended before it are gone."""
    await end(task)
    if before is not None:
        await asyncio.wait([before])
