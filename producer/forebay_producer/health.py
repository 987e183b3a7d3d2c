"""`/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response

from forebay_producer.answers import json_answer, raw_answer
from forebay_producer.guard import Row, header_map
from forebay_producer.replica import Replica

_STATUS_WAIT_S = 1.0


class HealthRoutes:
    """What probes and Prometheus ask. `/healthz` depends on this process alone."""

    def __init__(self, replica: Replica, *, keyed: bool = False) -> None:
        self._replica = replica
        self._keyed = keyed

    def probes(self) -> list[Row]:
        return [("GET", "/healthz", self.healthz), ("GET", "/readyz", self.readyz)]

    def admin(self) -> list[Row]:
        return [*self.probes(), ("GET", "/metrics", self.metrics)]

    async def healthz(self, request: Request) -> Response:
        """200 while the event loop turns."""
        return json_answer({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """200 while new requests should come here, else 503 and why not."""
        replica = self._replica
        if replica.is_ready():
            return json_answer({"status": "ready"})
        if replica.draining:
            return json_answer({"status": "draining"}, 503)
        if not replica.is_redis_up():
            return json_answer({"status": "redis is away"}, 503)
        return json_answer({"status": "starting"}, 503)

    async def metrics(self, request: Request) -> Response:
        """All metrics of this process, and the depth of its pools while Redis answers."""
        replica = self._replica
        if self._keyed:
            replica.callers.identify(header_map(request))
        replica.metrics.set("forebay_waiters", sum(len(p.inbox) for p in replica.pools.values()))
        replica.metrics.set("forebay_redis_up", float(replica.is_redis_up()))
        try:
            async with asyncio.timeout(_STATUS_WAIT_S):
                await self._note_pools()
        except (TimeoutError, RedisError):
            replica.metrics.set("forebay_redis_up", 0)
        body = generate_latest(replica.metrics.registry)
        return raw_answer(body, content_type=CONTENT_TYPE_LATEST)

    async def _note_pools(self) -> None:
        queued: dict[str, float] = {}
        oldest_s: dict[str, float] = {}
        for pool in self._replica.pools.values():
            if pool.ready:
                _add(await pool.operator.status(), queued, oldest_s)
        for name, count in queued.items():
            self._replica.metrics.set("forebay_pool_queued", count, **{"class": name})
        for name, age_s in oldest_s.items():
            self._replica.metrics.set("forebay_pool_oldest_wait_seconds", age_s, **{"class": name})


def _add(status: dict[str, Any], queued: dict[str, float], oldest_s: dict[str, float]) -> None:
    for row in status["classes"]:
        name = str(row["name"])
        queued[name] = queued.get(name, 0) + float(row["queued"])
        oldest_s[name] = max(oldest_s.get(name, 0), float(row["oldest_ms"]) / 1000)
