"""Looking at Redis' eviction policy: where there is no producer, a worker tells it."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from forebay_shared.eviction import EvictionWatch
from forebay_shared.metrics import Metrics
from forebay_worker.link import Link

EVERY_S = 10.0


class Eviction:
    """Asks Redis for its policy, again and again."""

    def __init__(self, redis: Redis, link: Link, metrics: Metrics) -> None:
        self._redis = redis
        self._link = link
        self._watch = EvictionWatch(metrics)

    async def once(self) -> None:
        """Look now, and wait until the next time."""
        self._watch.look(await self._link.ask("info", lambda: self._redis.info("memory")))
        await asyncio.sleep(EVERY_S)
