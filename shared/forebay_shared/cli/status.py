"""`forebay status`: what waits and runs in each pool, and which workers there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
from redis.asyncio import Redis

from forebay_shared.calls import Operator
from forebay_shared.cli.pools import find_pool, known_pools
from forebay_shared.cli.redis_place import named_or_running, open_redis, redis_options
from forebay_shared.cli.terminal import example, json_option, print_json, run

EVERY_S = 1.0
EXAMPLES = example("""
  forebay status
  forebay status --watch
  forebay status --redis redis://127.0.0.1:6379/0 --pool default --json
""")


@click.command(epilog=EXAMPLES)
@redis_options
@click.option("--pool", help="Only this pool.  [default: all that workers have registered]")
@click.option("--watch", is_flag=True, help="Show it again each second until ^C.")
@json_option
def status(
    redis_url: str | None, state: Path | None, pool: str | None, watch: bool, as_json: bool
) -> None:
    """Show each pool: its classes with what is queued and runs, its workers, its counts.

    With --json a line for each pool; with --json --watch again each second.
    """
    url = named_or_running(redis_url, state)
    if watch:
        run(_watch(url, pool, as_json), on_stop="")
        return
    pools = run(_once(url, pool))
    if as_json:
        for one in pools:
            print_json(one)
        return
    from rich.console import Console

    from forebay_shared.cli.status_view import pools_view

    Console().print(pools_view(pools))


async def _once(url: str, pool: str | None) -> list[dict[str, Any]]:
    async with open_redis(url) as redis:
        return await read_pools(redis, pool)


async def _watch(url: str, pool: str | None, as_json: bool) -> None:
    async with open_redis(url) as redis:
        if as_json:
            async for pools in _each_second(redis, pool):
                for one in pools:
                    print_json(one)
            return
        from rich.live import Live

        from forebay_shared.cli.status_view import pools_view

        with Live(screen=True, auto_refresh=False) as live:
            async for pools in _each_second(redis, pool):
                live.update(pools_view(pools), refresh=True)


async def _each_second(redis: Redis, pool: str | None) -> AsyncIterator[list[dict[str, Any]]]:
    while True:
        yield await read_pools(redis, pool)
        await asyncio.sleep(EVERY_S)


async def read_pools(redis: Redis, pool: str | None = None) -> list[dict[str, Any]]:
    """The status of the named pool, or of all. Raises Problem where there is none."""
    names = [pool] if pool else await known_pools(redis)
    return [await _read_pool(redis, name) for name in names]


async def _read_pool(redis: Redis, name: str) -> dict[str, Any]:
    return {"pool": name} | await Operator(await find_pool(redis, name)).status()
