"""The reply path of one replica and pool: one blocked read for everybody who waits here.

All ids with news since the last look go into one `reply`. A waiter that heard nothing for a second
asks by itself, so lost news costs a second and never an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from itertools import islice

from forebay_producer.news import News
from forebay_producer.options import Timings
from forebay_producer.reader import Left, Reader
from forebay_shared.calls import Intake, Seen
from forebay_shared.calls.library import ITEMS_PER_CALL
from forebay_shared.calls.requests import UNKNOWN
from forebay_shared.metrics import Metrics

_REPLY_BYTES = 1024 * 1024
"""A reply that carries so much may have left out more."""


class Inbox:
    """The readers of one pool.

    Three duties must run for them: `listen`, `answer` and `floor`, each until cancelled. They raise
    what Redis raises and may be started again at any time; readers live on over that.
    """

    def __init__(self, intake: Intake, news: News, timings: Timings, metrics: Metrics) -> None:
        self._intake = intake
        self._news = news
        self._timings = timings
        self._metrics = metrics
        self._by_id: dict[str, set[Reader]] = {}
        self._quiet: OrderedDict[Reader, None] = OrderedDict()
        self._due: dict[Reader, None] = {}
        self._some_due = asyncio.Event()
        self._none_due = asyncio.Event()
        self._none_due.set()
        self._some_quiet = asyncio.Event()

    @property
    def name(self) -> str:
        """The inbox to admit with."""
        return self._news.name

    def __len__(self) -> int:
        return sum(len(readers) for readers in self._by_id.values())

    # Readers ------------------------------------------------------------------------------------

    def open(self, request_id: str, have: int = UNKNOWN) -> Reader:
        """A reader of a request that may not be stored yet; `arm` it when it is."""
        reader = Reader(request_id, have, self._timings.reader_bytes)
        self._by_id.setdefault(request_id, set()).add(reader)
        return reader

    def arm(self, reader: Reader) -> None:
        """The request is stored and this replica watches it: from now on its absence counts."""
        reader.armed = True
        reader.asked_s = time.monotonic()
        self._quiet[reader] = None
        self._some_quiet.set()

    def close(self, reader: Reader) -> None:
        """Forget a reader."""
        reader.leave(Left.CLIENT)
        self._quiet.pop(reader, None)
        self._due.pop(reader, None)
        others = self._by_id.get(reader.request_id, set())
        others.discard(reader)
        if not others:
            self._by_id.pop(reader.request_id, None)

    def readers(self) -> list[Reader]:
        """All that wait here now."""
        return [reader for readers in self._by_id.values() for reader in readers]

    def is_read(self, request_id: str) -> bool:
        """Whether anybody here waits for this request."""
        return request_id in self._by_id

    def ask(self, reader: Reader) -> None:
        """Ask for this reader with the next reply."""
        self._due[reader] = None
        self._none_due.clear()
        self._some_due.set()

    def leave_all(self, why: Left) -> None:
        """Every reader stops waiting."""
        for reader in self.readers():
            reader.leave(why)

    # Duties -------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Read the inbox and ask for whom it names."""
        while True:
            if await self._news.renew():
                for reader in self._quiet:
                    self.ask(reader)
            for request_id in await self._news.read():
                for reader in self._by_id.get(request_id, ()):
                    self.ask(reader)
            # What comes meanwhile shares the next read and the next reply.
            await self._none_due.wait()

    async def answer(self) -> None:
        """Ask Redis for all who are due, up to 100 in one call."""
        while True:
            await self._some_due.wait()
            while batch := self._batch():
                await self._reply(batch)
            self._some_due.clear()
            self._none_due.set()

    def _batch(self) -> list[Reader]:
        batch: list[Reader] = []
        while self._due and len(batch) < ITEMS_PER_CALL:
            reader = next(iter(self._due))
            del self._due[reader]
            reader.starved = reader.full
            if not reader.starved and not reader.over:
                batch.append(reader)
        return batch

    async def _reply(self, batch: list[Reader]) -> None:
        now_s = time.monotonic()
        for reader in batch:
            reader.asked_s = now_s
            if reader in self._quiet:
                self._quiet.move_to_end(reader)
        self._metrics.count("forebay_redis_calls_total", step="reply")
        wanted = [(reader.request_id, reader.have) for reader in batch]
        seen = await self._intake.reply(self.name, wanted)
        cut = sum(map(_size, seen)) >= _REPLY_BYTES
        again = [one for one, saw in zip(batch, seen, strict=True) if one.take_in(saw, cut=cut)]
        # Who got nothing because others filled the reply goes first now.
        for reader in sorted(again, key=lambda one: not one.dry):
            self.ask(reader)

    async def floor(self) -> None:
        """Ask for whoever heard nothing for `floor_s`, at most 100 at a time."""
        while True:
            await self._some_quiet.wait()
            oldest = next(iter(self._quiet), None)
            if oldest is None:
                self._some_quiet.clear()
                continue
            due_s = oldest.asked_s + self._timings.floor_s - time.monotonic()
            if due_s > 0:
                await asyncio.sleep(due_s)
                continue
            self._ask_quiet()

    def _ask_quiet(self) -> None:
        now_s = time.monotonic()
        for reader in list(islice(self._quiet, ITEMS_PER_CALL)):
            if reader.asked_s + self._timings.floor_s > now_s:
                return
            reader.asked_s = now_s
            self._quiet.move_to_end(reader)
            self.ask(reader)


def _size(seen: Seen) -> int:
    return len(seen.result) + sum(len(event) for _, event in seen.chunks)
