"""Growing pauses, and the one loop that all background duties run in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from forebay_shared.connect import redis_away, redis_full
from forebay_shared.logs import failure

FIRST_S = 0.05
MOST_S = 1.0
AGAIN_S = 0.01


class Backoff:
    """Pauses that double from `first_s` to `most_s`, each shortened by up to a third at random."""

    def __init__(self, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def next_s(self) -> float:
        """The pause to make now."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        return pause_s * random.uniform(2 / 3, 1)

    def reset(self) -> None:
        """It went well: the next pause is the first again."""
        self._next_s = self._first_s


async def go_on(name: str, once: Callable[[], Awaitable[None]]) -> None:
    """Do `once` again and again for ever; after an error, again after a pause of at most 1 s.

    `once` itself waits until it is due. That Redis is away is told elsewhere; any other error is
    a fault of ours: it is logged, and must not end the duty.
    """
    backoff = Backoff()
    while True:
        try:
            await once()
            backoff.reset()
        except Exception as error:  # noqa: BLE001  a duty that ends would leave a worker half dead
            if not (redis_away(error) or redis_full(error)):
                failure(f"{name} failed", error)
            await asyncio.sleep(backoff.next_s())


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended.

    Once is not enough: `asyncio.wait_for` of Python 3.11 loses a cancel that comes in the moment in
    which what it waits for is done, and redis-py sends its commands through it.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN_S)
