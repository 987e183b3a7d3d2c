"""The stream in Redis that tells this replica which requests have news."""

from __future__ import annotations

import time
from typing import Any

from redis.asyncio import Redis

from forebay_producer.options import Timings
from forebay_shared.keys import Keys

_NOTES_PER_READ = 1_000
_MS = 1_000


class News:
    """One inbox, made anew under a fresh name when Redis has lost it.

    The replica alone creates it, so that a note for a dead replica creates nothing.
    """

    def __init__(
        self, redis: Redis, blocking: Redis, keys: Keys, replica: str, timings: Timings
    ) -> None:
        self._redis = redis
        self._blocking = blocking
        self._keys = keys
        self._replica = replica
        self._timings = timings
        self._number = 0
        self._last: bytes | str = "0"
        self._renew_at_s = 0.0

    @property
    def name(self) -> str:
        """The inbox that requests are watched by; none before the first `renew`."""
        return f"{self._replica}.{self._number}" if self._number else ""

    async def renew(self) -> bool:
        """Keep the inbox alive if it is time; whether a new one was made instead.

        After a new one every waiter must be asked for: its news went elsewhere.
        """
        now_s = time.monotonic()
        if now_s < self._renew_at_s:
            return False
        ttl_ms = int(self._timings.inbox_ttl_s * _MS)
        kept = bool(self.name) and await self._redis.pexpire(self._keys.inbox(self.name), ttl_ms)
        if not kept:
            await self._make(ttl_ms)
        self._renew_at_s = now_s + self._timings.inbox_renew_s
        return not kept

    async def touch(self) -> None:
        """Keep the inbox alive, or see that it is gone: then `renew` makes a new one.

        A write each time, so it raises what Redis raises while it takes none.
        """
        ttl_ms = int(self._timings.inbox_ttl_s * _MS)
        if not await self._redis.pexpire(self._keys.inbox(self.name), ttl_ms):
            self._renew_at_s = 0.0

    async def _make(self, ttl_ms: int) -> None:
        key = self._keys.inbox(f"{self._replica}.{self._number + 1}")
        self._last = await self._redis.xadd(key, {"made": "1"})
        await self._redis.pexpire(key, ttl_ms)
        self._number += 1

    async def read(self) -> list[str]:
        """Wait for news; ids of the requests that have some, each once, or none after a while."""
        key = self._keys.inbox(self.name)
        block_ms = int(self._timings.block_s * _MS)
        try:
            reply: Any = await self._blocking.xread(
                {key: self._last}, count=_NOTES_PER_READ, block=block_ms
            )
        except BaseException:
            self._renew_at_s = 0.0  # Redis may have lost it meanwhile
            raise
        notes = reply[0][1] if reply else []
        if notes:
            self._last = notes[-1][0]
        return list(dict.fromkeys(note[b"id"].decode() for _, note in notes if b"id" in note))
