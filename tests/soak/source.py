"""A process that does what a producer does, without HTTP: admit, wait for news, reply, count.

    python -m tests.soak.source REDIS FIRST COUNT

prints one JSON object when every request has ended: `ended`, counts by state (`gone`: it ended
unread, and its time was over), and `repeated`, admits that met an earlier one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis
from tests.soak.mix import POOL, ask

from forebay_shared.calls import Admission, Admitted, Intake, Library
from forebay_shared.calls.library import HEAVY_ITEMS_PER_CALL, ITEMS_PER_CALL
from forebay_shared.connect import connect, connect_blocking
from forebay_shared.keys import Keys

WINDOW = 1_000
"""Requests under way at once."""
ADMITTERS = 2
BLOCK_S = 1.0
FLOOR_S = 1.0
INBOX_TTL_MS = 10_000
NOTES = 500
UNSTORED_S = float("inf")


class Source:
    """Sends the requests of a range and follows each to its end."""

    def __init__(self, redis: Redis, blocking: Redis, numbers: range) -> None:
        self._redis = redis
        self._blocking = blocking
        self._intake = Intake(Library(redis, POOL))
        self._numbers = iter(numbers)
        self._inbox = uuid4().hex[:16]
        self._open: OrderedDict[str, float] = OrderedDict()
        """Id → when it was last asked for; not yet where it may not be stored."""
        self._sending: list[asyncio.Task[None]] = []
        self._room = asyncio.Event()
        self._room.set()
        self.ended: Counter[str] = Counter()
        self.repeated = 0

    async def run(self) -> None:
        """Return when all have ended."""
        key = Keys(POOL).inbox(self._inbox)
        last: Any = await self._redis.xadd(key, {"made": "1"})
        async with asyncio.TaskGroup() as tasks:
            self._sending = [tasks.create_task(self._send()) for _ in range(ADMITTERS)]
            tasks.create_task(self._listen(key, last))
        await self._redis.delete(key)

    async def _send(self) -> None:
        while page := [ask(number) for number in islice(self._numbers, HEAVY_ITEMS_PER_CALL)]:
            while len(self._open) > WINDOW:
                self._room.clear()
                await self._room.wait()
            await self._admit([one.admission for one in page])
            # Sent again by a client that has no answer yet: another id, the same key.
            await self._admit([one.again() for one in page if one.twice])
            for one in page:
                if one.cancelled:
                    await self._intake.cancel(one.admission.request_id)

    async def _admit(self, page: list[Admission]) -> None:
        if not page:
            return
        for one in page:  # before it is stored, so that no news of it comes too early
            self._open[one.request_id] = UNSTORED_S
        for one, answer in zip(page, await self._intake.admit(page, self._inbox), strict=True):
            if not isinstance(answer, Admitted):
                raise RuntimeError(f"refused: {answer}")
            if answer.request_id != one.request_id:
                self.repeated += 1
                del self._open[one.request_id]
            elif one.request_id in self._open:
                self._open[one.request_id] = time.monotonic()

    async def _listen(self, key: str, last: Any) -> None:
        """Replies for those with news; the oldest are asked for even without."""
        while self._open or not all(task.done() for task in self._sending):
            await self._redis.pexpire(key, INBOX_TTL_MS)
            reply: Any = await self._blocking.xread(
                {key: last}, count=NOTES, block=int(BLOCK_S * 1000)
            )
            notes = reply[0][1] if reply else []
            last = notes[-1][0] if notes else last
            named = (note[b"id"].decode() for _, note in notes if b"id" in note)
            due = [*dict.fromkeys(one for one in named if one in self._open), *self._overdue()]
            for start in range(0, len(due), ITEMS_PER_CALL):
                await self._reply(due[start : start + ITEMS_PER_CALL])

    def _overdue(self) -> Iterator[str]:
        """Those that have waited for long, oldest first; they go to the end."""
        now_s = time.monotonic()
        for request_id in list(islice(self._open, ITEMS_PER_CALL)):
            if self._open[request_id] + FLOOR_S > now_s:
                return
            self._open[request_id] = now_s
            self._open.move_to_end(request_id)
            yield request_id

    async def _reply(self, ids: list[str]) -> None:
        for seen in await self._intake.reply(self._inbox, [(one, 0) for one in ids]):
            if (seen.ended or not seen.state) and seen.request_id in self._open:
                del self._open[seen.request_id]
                self.ended[seen.state or "gone"] += 1
        if len(self._open) <= WINDOW:
            self._room.set()


async def main(url: str, first: int, count: int) -> None:
    redis, blocking = connect(url), connect_blocking(url, BLOCK_S)
    source = Source(redis, blocking, range(first, first + count))
    try:
        await source.run()
    finally:
        await redis.aclose()
        await blocking.aclose()
    print(json.dumps({"ended": source.ended, "repeated": source.repeated}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
