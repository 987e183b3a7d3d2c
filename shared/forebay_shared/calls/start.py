"""Starting a process: the library works, and this user may call whatever the process calls.

An ACL user who lacks a command would fail in the middle of a step, or in a duty that nobody looks
at. So each process tries all of them before it serves, and names what is missing.
"""

from __future__ import annotations

import re
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from forebay_shared.calls.doctor import KEYS, REFUSED, Doctor
from forebay_shared.calls.library import Library
from forebay_shared.connect import at
from forebay_shared.errors import CommandsRefused
from forebay_shared.keys import POOLS
from forebay_shared.rights import Command, probes

_ADVICE = "`forebay doctor --acl` prints the users that Forebay needs"
_NAMED = re.compile(r"'([a-z|]+)' command")
_LOAD = "function|load"


async def start_library(library: Library) -> None:
    """Load the library, found the pool, try every command.

    Raises CommandsRefused, which names what is missing, LayoutMismatch, and what Redis raises.
    """
    try:
        await library.start()
        lacking = await _lacking_outside(library)
    except (CommandsRefused, RedisError) as error:
        if not _is_refusal(error):
            raise
        raise CommandsRefused(await _diagnosis(library, error)) from error
    if lacking:
        raise CommandsRefused(_told(lacking))


async def _lacking_outside(library: Library) -> list[str]:
    """The ACL rules that this user lacks for what is called beside the library."""
    lacking = []
    for name, command in probes(library.keys).items():
        try:
            await _call(library, command)
        except NoPermissionError as error:
            about_keys = any(words in str(error) for words in KEYS)
            pattern = POOLS if POOLS in command else library.keys.every
            lacking.append(f"~{pattern}" if about_keys else f"+{name}")
        except ResponseError as error:
            if "unknown command" not in str(error):
                raise
            lacking.append(f"+{name}")
    return list(dict.fromkeys(lacking))


async def _call(library: Library, command: Command) -> None:
    redis: Any = at(library.redis, POOLS) if POOLS in command else library.redis
    await redis.execute_command(*command)


def _is_refusal(error: Exception) -> bool:
    # On a unix socket redis-py wraps what goes wrong while it connects.
    kinds = (CommandsRefused, NoPermissionError)
    return isinstance(error, kinds) or isinstance(error.__cause__, kinds) or _is_inner(error)


def _is_inner(error: Exception) -> bool:
    """Whether it was refused inside a function, which may not tell what."""
    return any(words in str(error) for words in REFUSED)


async def _diagnosis(library: Library, error: Exception) -> str:
    lacking = await _lacking_inside(library) if _is_inner(error) else []
    named = _NAMED.search(str(error))
    if named and named[1] == _LOAD:
        return (
            "this Redis does not have this version's function library, and this user may not load "
            "it: run `forebay doctor --load` of this version as the operator first"
        )
    if named and not lacking:
        lacking = [f"+{named[1]}"]
    elif isinstance(error, NoPermissionError) and not lacking:
        lacking = [f"~{library.keys.every}"]
    return _told(lacking) if lacking else f"{error}; {_ADVICE}"


async def _lacking_inside(library: Library) -> list[str]:
    try:
        return await Doctor(library).lacking()
    except ResponseError:  # of a pool that this user cannot found: the first error has to do
        return []


def _told(lacking: list[str]) -> str:
    return f"this Redis user lacks {' '.join(lacking)}; {_ADVICE}"
