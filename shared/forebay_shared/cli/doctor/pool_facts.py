"""What a pool says of itself. Nothing is changed: a pool that is not there is not founded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from redis.asyncio import Redis

from forebay_shared.calls import Library, Operator
from forebay_shared.calls.doctor import Counts, Doctor
from forebay_shared.cli.doctor.scan import Scan, scan
from forebay_shared.connect import at
from forebay_shared.errors import LayoutMismatch
from forebay_shared.keys import Keys
from forebay_shared.settings import PoolSettings


@dataclass(slots=True)
class Pool:
    """One pool. What could not be read is None, and `why_unread` says why."""

    name: str
    why_unread: str = ""
    is_foreign: bool = False
    """Its keys have a layout of another version."""
    counts: Counts | None = None
    status: dict[str, Any] = field(default_factory=dict)
    settings: PoolSettings | None = None
    why_unreadable: str = ""
    """What is wrong with the stored settings."""
    scan: Scan | None = None

    def living(self) -> list[dict[str, Any]]:
        """Workers that have registered lately."""
        ttl_ms = (self.settings or PoolSettings()).worker_ttl_ms
        return [one for one in self.status.get("workers", []) if one["seen_ms"] <= ttl_ms]


async def read_pool(redis: Redis, name: str, within_s: float, *, is_loaded: bool) -> Pool:
    """Ask one pool; `is_loaded`: this version's library is there, without which little is told."""
    pool, keys = Pool(name), Keys(name)
    redis = at(redis, keys.layout)
    if not await redis.exists(keys.layout):
        pool.why_unread = "there is no such pool yet; a worker or producer founds it"
    elif not is_loaded:
        pool.why_unread = "this version's library is not on the server"
    else:
        try:
            await _read(pool, redis, Library(redis, name), within_s)
        except LayoutMismatch as error:
            pool.is_foreign, pool.why_unread = True, str(error)
    return pool


async def _read(pool: Pool, redis: Redis, library: Library, within_s: float) -> None:
    operator, doctor = Operator(library), Doctor(library)
    pool.counts, pool.status = await doctor.counts(), await operator.status()
    try:
        pool.settings, _ = await operator.settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        pool.why_unreadable = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    pool.scan = await scan(redis, doctor, library.keys, within_s)
