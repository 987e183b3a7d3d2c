"""One pool as a producer serves it: its calls, its duties, and what is known of it."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import ValidationError
from redis.asyncio import Redis

from forebay_producer.admitter import Admitter
from forebay_producer.canceller import Canceller
from forebay_producer.inbox import Inbox
from forebay_producer.news import News
from forebay_producer.options import Timings
from forebay_producer.reader import Left, Reader
from forebay_producer.supervise import end_tasks, keep_up
from forebay_shared import logs
from forebay_shared.calls import Duties, Intake, Library, Operator
from forebay_shared.calls.replicated import Replicated
from forebay_shared.calls.start import start_library
from forebay_shared.connect import at
from forebay_shared.keys import Keys
from forebay_shared.metrics import Metrics
from forebay_shared.settings import PoolSettings

_END_S = 1.0


class Pool:
    """Serves one pool while `run` runs, after a `start` that succeeded.

    `ready` once the library works and the inbox exists.
    """

    def __init__(
        self, name: str, redis: Redis, blocking: Redis, replica: str, timings: Timings,
        metrics: Metrics,
    ) -> None:  # fmt: skip
        self.name = name
        self.settings = PoolSettings()
        self.models: dict[str, int] = {}
        """Model → when a worker last served it (ms since 1970, Redis' clock); those still known."""
        self.ready = False
        self._settings_refused = ""
        """Why the stored settings could not be read at the last look; the old ones hold then."""
        redis, blocking = (at(one, Keys(name).layout) for one in (redis, blocking))
        self.redis = redis
        self._blocking = blocking
        self._metrics = metrics
        self._library = Library(redis, name)
        self._duties = Duties(self._library)
        self.operator = Operator(self._library)
        self.intake = Intake(self._library)
        # Admits, replies and the inbox have one call out at a time each. On connections of their
        # own they are spared the pool's hand-over, a third of a call's cost in this process.
        self._own = [redis.client(), redis.client(), blocking.client()]
        replicated = Replicated(self._own[0], name, None, lambda: self.settings)
        admitting, replying = Intake(replicated), Intake(Library(self._own[1], name))
        self._news = News(redis, self._own[2], self._library.keys, replica, timings)
        self.inbox = Inbox(replying, self._news, timings, metrics)
        # By the connection of replies: one that is out can not add this replica's inbox again
        # after it was taken away.
        self.canceller = Canceller(replying, self.inbox, timings.leave_for_s)
        self.admitter = Admitter(admitting, self.inbox, metrics)

    async def start(self) -> None:
        """Load the library, make the inbox. Raises Unusable, or what Redis raises."""
        await start_library(self._library)
        await self._news.renew()
        await self.refresh()
        self.ready = True

    async def run(self) -> None:
        """Do the pool's duties until cancelled."""
        logs.event("pool_ready", pool=self.name)
        duties = (self.inbox.listen, self.inbox.answer, self.inbox.floor, self._sweep)
        tasks = [asyncio.create_task(keep_up(duty.__name__, duty)) for duty in duties]
        try:
            await asyncio.wait(tasks)
        finally:
            await end_tasks(tasks, _END_S)

    async def refresh(self) -> None:
        """Read settings and models again; bad settings change nothing.

        Raises what Redis raises, also where it answers and takes no writes: then nothing can be
        admitted.
        """
        await self._news.touch()
        await self._read_settings()
        time: Any = await self.redis.time()
        oldest_ms = int(time[0]) * 1000 - self.settings.known_model_ms
        rows: Any = await self.redis.zrangebyscore(
            self._library.keys.models, oldest_ms, "+inf", withscores=True
        )
        self.models = {model.decode(): int(seen_ms) for model, seen_ms in rows}

    async def _read_settings(self) -> None:
        try:
            self.settings, _ = await self.operator.settings()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            if why != self._settings_refused:
                logs.event("settings_refused", 40, pool=self.name, why=why)
            self._settings_refused = why
        else:
            self._settings_refused = ""

    async def _sweep(self) -> None:
        """Offer the pool's sweep each tick; what was full is repeated at once."""
        while True:
            self._metrics.count("forebay_redis_calls_total", step="sweep")
            swept = await self._duties.sweep()
            while swept is not None and swept.again:
                swept = await self._duties.sweep(forced=True)
            await asyncio.sleep(self.settings.sweep_ms / 1000)

    def close_reader(self, reader: Reader) -> None:
        """Forget a reader; where its client left as the last one here, tell Redis soon."""
        left = reader.left
        self.inbox.close(reader)
        known = reader.armed and not self.inbox.is_read(reader.request_id)
        if known and left in (Left.CLIENT, Left.OVERDUE):
            self.canceller.leave(reader.request_id)

    async def close(self) -> None:
        """Close the pool's own connections."""
        for client in (*self._own, self._blocking):
            await client.aclose()
