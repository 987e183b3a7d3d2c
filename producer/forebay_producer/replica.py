"""The state of one producer process: its pools, who may call, and how Redis is."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import NoPermissionError

from forebay_producer.answers import redis_away_error
from forebay_producer.keysfile import BadKeysFile, Callers
from forebay_producer.options import ServeOptions
from forebay_producer.pool import Pool
from forebay_producer.reader import Left
from forebay_producer.supervise import end_tasks, keep_up
from forebay_shared import keys, logs
from forebay_shared.connect import connect, connect_blocking, why_unusable
from forebay_shared.errors import ModelNotFound, Unusable
from forebay_shared.eviction import NEVER, EvictionWatch
from forebay_shared.ids import new_process_id, pool_of
from forebay_shared.metrics import Metrics
from forebay_shared.names import client_name

_USUAL_POOL = "default"
_LOOK_EVERY_S = 0.1
"""Requests for unknown models make this replica look again, but not more often than this."""


def _is_lasting(error: Exception) -> bool:
    """Whether Redis answers so until somebody changes its users, the URL or what is stored."""
    return isinstance(error, Unusable | NoPermissionError) or bool(why_unusable(error))


class Replica:
    """Everything that the routes ask. Raises BadKeysFile, and ValueError for a bad Redis URL."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.timings = options.timings
        self.metrics = Metrics()
        self.callers = Callers(options.keys_file)
        self.draining = False
        self.unusable = asyncio.Event()
        """Set where Redis will not serve this replica as things stand, before it ever was ready."""
        self.why_unusable = ""
        self._was_ready = False
        self.pools: dict[str, Pool] = {}
        self._id = new_process_id()
        self._redis = connect(options.redis_url, name=client_name("forebay-producer", self._id))
        self._redis_full = False
        self._answered_s = -math.inf
        self._eviction = EvictionWatch(self.metrics)
        self._looking = asyncio.Lock()
        self._looked_s = 0.0
        self._next_look: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # Life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve the pools. Redis need not be there yet."""
        for name in self.options.pools:
            self._add(name)
        self._tasks.append(asyncio.create_task(keep_up("refresh", self._refresh_always)))

    def _add(self, name: str) -> None:
        blocking = connect_blocking(
            self.options.redis_url, self.timings.block_s, name=f"forebay-inbox-{self._id}"
        )
        pool = Pool(name, self._redis, blocking, self._id, self.timings, self.metrics)
        self.pools[name] = pool
        self._tasks.append(asyncio.create_task(self._serve(pool)))

    async def _serve(self, pool: Pool) -> None:
        await keep_up("start", lambda: self._try(pool.start))
        await pool.run()

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        """Do a step of the start. What only an operator can mend is told while none was ready."""
        try:
            await step()
        except Exception as error:
            if self._was_ready or not _is_lasting(error):
                raise
            self.why_unusable = why_unusable(error) or str(error)
            self.unusable.set()
            await asyncio.Event().wait()  # until this process ends: no try is worth a log line
        self._was_ready = self._was_ready or self.is_ready()

    async def finish_cancellations(self) -> None:
        """Wait until every client that left has its request cancelled, or that was given up."""
        for pool in self.pools.values():
            await pool.canceller.finish()

    async def close(self, within_s: float) -> None:
        """End all duties, in `within_s` at most, and close the connections."""
        await end_tasks(self._tasks, within_s)
        for pool in self.pools.values():
            await pool.close()
        await self._redis.aclose()

    def end_open(self) -> None:
        """End what still waits here, with an error that says so."""
        for pool in self.pools.values():
            pool.inbox.leave_all(Left.DRAIN)

    # What is known ------------------------------------------------------------------------------

    async def _refresh_always(self) -> None:
        while True:
            await self._try(self.refresh)
            await asyncio.sleep(self.timings.refresh_s)

    async def refresh(self) -> None:
        """Read memory, pools, models, settings and changed keys again. Raises what Redis raises."""
        async with self._looking:
            servers = {self._redis, *(pool.redis for pool in self.pools.values())}
            self._judge_memory([await one.info("memory") for one in servers])
            if not self.options.pools:
                await self._discover()
            for pool in self.pools.values():
                if pool.ready:
                    await pool.refresh()
            self._answered_s = time.monotonic()
        self._reread_keys()

    async def _discover(self) -> None:
        rows: Any = await self._redis.zrange(keys.POOLS, 0, -1)
        found = [row.decode() for row in rows] or ([] if self.pools else [_USUAL_POOL])
        for name in found:
            if name not in self.pools:
                self._add(name)

    def _judge_memory(self, servers: list[dict[str, object]]) -> None:
        self._redis_full = any(map(self._is_full, servers))
        self._eviction.look(max(servers, key=lambda one: one.get("maxmemory_policy") != NEVER))

    def _is_full(self, memory: dict[str, object]) -> bool:
        used, most = int(str(memory["used_memory"])), int(str(memory["maxmemory"]))
        return most > 0 and used >= self.timings.full_share * most

    def _reread_keys(self) -> None:
        try:
            if self.callers.reread():
                logs.event("keys_read")
        except BadKeysFile as error:
            logs.event("keys_refused", 40, why=str(error))

    def is_redis_up(self) -> bool:
        """Whether Redis has answered, and taken a write, a moment ago."""
        return time.monotonic() - self._answered_s < self.timings.stale_s + self.timings.refresh_s

    def is_full(self) -> bool:
        """Whether Redis had no room for more a moment ago."""
        return self._redis_full

    def is_ready(self) -> bool:
        """Whether new requests should be sent here."""
        served = bool(self.pools) and all(pool.ready for pool in self.pools.values())
        return served and self.is_redis_up() and not self.draining

    # Routing ------------------------------------------------------------------------------------

    def body_limit(self) -> int:
        """Longest body that any pool takes."""
        return max((pool.settings.body_bytes for pool in self.pools.values()), default=1024 * 1024)

    def require_room(self) -> None:
        """Raises RedisAway while Redis has no room for more."""
        if self._redis_full:
            raise redis_away_error("The queue's memory is nearly full; come back soon.")

    async def pool_for(self, model: str) -> Pool:
        """The pool to admit to. Raises ModelNotFound, or RedisAway before the pool can serve."""
        pool = self._known(model)
        if pool is None and self.pools:
            await self._look_again()  # a worker may have come just now
            pool = self._known(model)
        if pool is not None and pool.ready:
            return pool
        if pool is None and self.pools and all(one.ready for one in self.pools.values()):
            raise ModelNotFound(
                f"The model `{model}` does not exist; see GET /v1/models.", param="model"
            )
        raise redis_away_error()

    async def _look_again(self) -> None:
        """A refresh that begins after this call; many calls share one."""
        if self._next_look is None:
            self._next_look = asyncio.create_task(self._look())
        await asyncio.shield(self._next_look)

    async def _look(self) -> None:
        wait_s = self._looked_s + _LOOK_EVERY_S - time.monotonic()
        await asyncio.sleep(max(0.0, wait_s))
        self._looked_s = time.monotonic()
        self._next_look = None
        await self.refresh()

    def _known(self, model: str) -> Pool | None:
        serving = [pool for pool in self.pools.values() if model in pool.models]
        if serving:
            return max(serving, key=lambda pool: pool.models[model])
        if len(self.pools) == 1:
            (only,) = self.pools.values()
            # Not a word from a worker yet: what comes first shall wait for it.
            return only if not only.models else None
        return None

    async def pool_of(self, request_id: str) -> Pool | None:
        """The served pool that a request id names, or None where Redis knows of none.

        A replica that has just started does not know all pools yet: it looks before it says so,
        and raises what Redis raises.
        """
        name = pool_of(request_id)
        if name is None:
            return None
        if name not in self.pools:
            await self._look_again()
        return self.pools.get(name)
