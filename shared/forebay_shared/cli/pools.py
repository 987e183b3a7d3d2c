"""Which pool an operator's command is about. A slip of the pen must not found one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import click
from redis.asyncio import Redis

from forebay_shared.calls import Library
from forebay_shared.cli.redis_place import open_redis
from forebay_shared.cli.terminal import Problem
from forebay_shared.connect import at
from forebay_shared.keys import POOLS, Keys

_Command = TypeVar("_Command", bound=Callable[..., Any])


def pool_option(command: _Command) -> _Command:
    """`--pool`, given to the command as `pool`; None: the only one there is."""
    return click.option(
        "--pool", metavar="NAME", help="The pool.  [default: the one that workers have registered]"
    )(command)


async def known_pools(redis: Redis) -> list[str]:
    """Names of the pools that workers have registered, in order. Raises Problem without any."""
    stored = cast("list[bytes]", await redis.zrange(POOLS, 0, -1))
    if not stored:
        raise Problem("this Redis has no pool yet; a worker makes one: see `forebay work --help`")
    return sorted(name.decode() for name in stored)


async def find_pool(redis: Redis, name: str) -> Library:
    """The pool of this name. Raises Problem where there is none; it is not founded then."""
    # Asked first, since a call founds a pool that it does not find.
    layout = Keys(name).layout
    if not await at(redis, layout).exists(layout):
        known = ", ".join(await known_pools(redis))
        raise Problem(f"there is no pool {name!r} in this Redis; there are: {known}")
    return Library(redis, name)


@asynccontextmanager
async def open_pool(url: str, name: str | None) -> AsyncIterator[Library]:
    """The named pool, or the only one. Raises Problem where that is not one that exists."""
    async with open_redis(url) as redis:
        yield await find_pool(redis, name or await _only_pool(redis))


async def _only_pool(redis: Redis) -> str:
    known = await known_pools(redis)
    if len(known) > 1:
        raise Problem(f"there are several pools; say which with --pool: {', '.join(known)}")
    return known[0]
