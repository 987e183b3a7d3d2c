"""What must hold of the stored state at any moment, and when all is done."""

from __future__ import annotations

from redis.asyncio import Redis
from tests.flow.system import System

from forebay_shared.keys import POOLS
from forebay_shared.records import TERMINAL

PERMANENT = {"layout", "clock", "ledger", "settings", "models", "workers", "dead"}
"""Names of the keys of a pool that have no TTL while nothing waits or runs."""


async def _count(redis: Redis, pattern: str, kind: str) -> int:
    total = 0
    async for key in redis.scan_iter(match=pattern, _type=kind):
        total += await (redis.xlen(key) if kind == "stream" else redis.zcard(key))
    return total


async def assert_identities(system: System) -> dict[str, int]:
    """accepted = queued + running + all terminal; indexes and streams agree. The ledger."""
    redis, prefix = system.redis, f"fb:{{{system.library.pool}}}:"
    raw = await redis.hgetall(f"{prefix}ledger")
    ledger = {name.decode(): int(count) for name, count in raw.items()}
    running = await redis.zcard(f"{prefix}leases")
    queued = await redis.zcard(f"{prefix}delayed")
    for index in ("waiting", "suspects"):
        queued += await _count(redis, f"{prefix}{index}:*", "zset")
    ended = sum(ledger.get(state, 0) for state in TERMINAL)
    assert ledger["accepted"] == queued + running + ended, ledger
    assert await _count(redis, f"{prefix}queue:*", "stream") == queued + running
    status = await system.status()
    assert status["queued"] == queued
    return ledger


async def keys_without_ttl(system: System) -> set[str]:
    """Names of keys that would stay for ever, beside the permanent ones."""
    left: set[str] = set()
    prefix = f"fb:{{{system.library.pool}}}:"
    async for key in system.redis.scan_iter():
        if await system.redis.ttl(key) == -1:
            left.add(key.decode().removeprefix(prefix))
    return left - PERMANENT - {POOLS}
