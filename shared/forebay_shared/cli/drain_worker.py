"""Draining a worker: order it to leave, and wait until it has."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from forebay_shared.calls import Library, Operator
from forebay_shared.cli.pools import find_pool, known_pools
from forebay_shared.cli.redis_place import open_redis
from forebay_shared.cli.terminal import Problem, Told, say

EVERY_S = 0.25
LISTED_WORKERS = 20
STOPPED_WORKER = "waits no longer; the worker drains on"


async def drain_worker(url: str, worker: str, pool: str | None, wait: bool) -> Told:
    """Order the worker to drain; with `wait` return when it has left the registry.

    Raises Problem with the workers there are where it is none of them, or where it died.
    """
    async with open_redis(url) as redis:
        library, row = await _find(redis, worker, pool)
        operator = Operator(library)
        if row["state"] == "draining":
            # A worker that is asked twice gives back at once what still runs.
            say("it drains already")
        else:
            await operator.order(worker, "drain")
        facts = {"pool": library.pool, "worker": worker, "left": wait}
        if not wait:
            return Told(f"worker {worker} drains; `forebay status` shows when it has left", facts)
        say(f"worker {worker} finishes what it runs; what outlasts its grace runs elsewhere")
        await _until_left(operator, worker)
        return Told(f"worker {worker} has left", facts)


async def _find(redis: Redis, worker: str, pool: str | None) -> tuple[Library, dict[str, Any]]:
    """The worker's pool and its row in the registry. Its id is unique among all pools."""
    there: list[str] = []
    for name in [pool] if pool else await known_pools(redis):
        library = await find_pool(redis, name)
        for row in (await Operator(library).status())["workers"]:
            if row["id"] == worker:
                return library, row
            there.append(f"  {row['id']}  pool {name}, {row['state']}, holds {row['held']}")
    raise Problem(f"there is no worker {worker!r}; {_list(there)}")


def _list(there: list[str]) -> str:
    if not there:
        return "none is alive"
    more = [f"  and {len(there) - LISTED_WORKERS:,} more"] if there[LISTED_WORKERS:] else []
    return "\n".join(["there are:", *there[:LISTED_WORKERS], *more])


async def _until_left(operator: Operator, worker: str) -> None:
    settings, _ = await operator.settings()
    # Looked at again and again, as `status --watch` does: Redis tells nobody of the registry.
    while row := await _row(operator, worker):
        if row["seen_ms"] > settings.worker_ttl_ms:
            raise Problem(
                f"worker {worker} has died: it was last seen {row['seen_ms'] / 1000:.0f} s ago; "
                "what it held runs elsewhere"
            )
        await asyncio.sleep(EVERY_S)


async def _row(operator: Operator, worker: str) -> dict[str, Any] | None:
    rows = (await operator.status())["workers"]
    return next((row for row in rows if row["id"] == worker), None)
