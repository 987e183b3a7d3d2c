"""Which Redis an operator's command speaks to, and what to say where it does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from redis.asyncio import Redis
from redis.exceptions import RedisError

from forebay_shared.cli.terminal import Problem
from forebay_shared.connect import connect, redis_away, safe_url, why_unusable
from forebay_shared.embedded import running_url
from forebay_shared.errors import Unusable

_Command = TypeVar("_Command", bound=Callable[..., Any])


def redis_options(command: _Command) -> _Command:
    """`--redis` and `--state`, given to the command as `redis_url` and `state`."""
    state = click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the embedded server.  [env var: FOREBAY_STATE; default: the user's]",
    )
    url = click.option(
        "--redis",
        "redis_url",
        envvar="FOREBAY_REDIS",
        help="redis://, rediss://, unix://, redis+cluster:// or redis+sentinel:// URL.  "
        "[env var: FOREBAY_REDIS; default: the embedded server of `forebay up`]",
    )
    return url(state(command))


def named_or_running(redis_url: str | None, state: Path | None) -> str:
    """The URL named, else that of the embedded server that runs. Raises Problem where none does."""
    if redis_url:
        return redis_url
    running = running_url(state)
    if running is None:
        raise Problem(
            "no Redis is named and no embedded server runs; start one with `forebay up`, "
            "or name yours with --redis or in FOREBAY_REDIS"
        )
    return running


@asynccontextmanager
async def open_redis(url: str) -> AsyncIterator[Redis]:
    """A client. Raises Problem where the URL is wrong, or Redis does not answer or cannot serve."""
    try:
        client = connect(url, name="forebay-cli")
    except ValueError as error:
        raise Problem(str(error)) from None
    try:
        async with client:
            yield client
    except RedisError as error:
        raise _told(url, error) from error
    except Unusable as error:
        raise Problem(f"this forebay cannot work with {safe_url(url)}: {error}") from error


def _told(url: str, error: RedisError) -> Problem:
    if why := why_unusable(error):
        return Problem(f"{safe_url(url)} cannot be used: {why}")
    if redis_away(error):
        return Problem(f"Redis at {safe_url(url)} does not answer; is it running?")
    return Problem(f"Redis at {safe_url(url)} refused the call: {error}")
