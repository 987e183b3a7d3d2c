"""Walking through a pool's keys, in pages and for a bounded time, for what nobody needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from forebay_shared.calls.doctor import Doctor
from forebay_shared.calls.library import ITEMS_PER_CALL
from forebay_shared.keys import Keys

PAGE = 500
STREAMS = 200
"""So many queues are searched for consumers left behind."""
SETTLE_S = 1.0
"""A process may be between making a key and giving it its TTL. What is wrong still after this is
wrong."""
GROUP = "workers"


@dataclass(slots=True)
class Scan:
    """What was found: leaked keys and why, consumers left behind, inboxes of producers."""

    seen: int = 0
    complete: bool = True
    leaked: dict[bytes, str] = field(default_factory=dict)
    idle: set[tuple[bytes, str]] = field(default_factory=set)
    """Stream and consumer."""
    replicas: set[str] = field(default_factory=set)
    """Ids of the producers that have an inbox."""


async def scan(redis: Redis, doctor: Doctor, keys: Keys, within_s: float) -> Scan:
    """Look at all keys of the pool, or at as many as the time allows. Raises what Redis raises."""
    found, queues = Scan(), set[bytes]()
    until_s = time.monotonic() + within_s
    async for page in _pages(redis, keys):
        found.seen += len(page)
        found.leaked |= await _leaked(doctor, page)
        _sort(found, queues, page, len(keys.every) - 1)
        if time.monotonic() > until_s:
            found.complete = False
            break
    for stream in sorted(queues)[:STREAMS]:
        found.idle |= await _idle(redis, stream)
    if found.leaked or found.idle:
        await asyncio.sleep(min(SETTLE_S, within_s))
        await _confirm(redis, doctor, found)
    return found


async def _pages(redis: Redis, keys: Keys) -> AsyncIterator[list[bytes]]:
    cursor = 0
    while True:
        reply: Any = await redis.scan(cursor, match=keys.every, count=PAGE)
        cursor, page = reply
        yield list(dict.fromkeys(page))
        if not cursor:
            return


def _sort(found: Scan, queues: set[bytes], page: list[bytes], prefix: int) -> None:
    for name in page:
        kind, _, rest = name[prefix:].partition(b":")
        if kind == b"queue":
            queues.add(name)
        elif kind == b"inbox":
            found.replicas.add(rest.rpartition(b".")[0].decode(errors="replace"))


async def _leaked(doctor: Doctor, names: list[bytes]) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    for start in range(0, len(names), ITEMS_PER_CALL):
        found |= await doctor.leaked(names[start : start + ITEMS_PER_CALL])
    return found


async def _idle(redis: Redis, stream: bytes) -> set[tuple[bytes, str]]:
    """Workers that a stream's group knows though they hold nothing of it."""
    try:
        rows: Any = await redis.xinfo_consumers(stream, GROUP)
    except ResponseError as error:
        if "NOGROUP" in str(error) or "no such key" in str(error):
            return set()  # it has ended meanwhile, or nobody has taken from it
        raise
    names = [row["name"].decode() for row in rows if not row["pending"]]
    return {(stream, name) for name in names if not name.startswith("@")}


async def _confirm(redis: Redis, doctor: Doctor, found: Scan) -> None:
    found.leaked = await _leaked(doctor, list(found.leaked))
    again = [await _idle(redis, stream) for stream in {stream for stream, _ in found.idle}]
    found.idle &= set().union(*again)
