"""Draining a pool: refuse what is new, and wait until what was accepted has ended."""

from __future__ import annotations

import asyncio
from typing import Any

from forebay_shared.calls import Operator
from forebay_shared.cli.bar import progress_bar
from forebay_shared.cli.pools import open_pool
from forebay_shared.cli.switch import switches
from forebay_shared.cli.terminal import Problem, Told, say

EVERY_S = 0.25
STOPPED_POOL = "waits no longer; the pool drains on until `forebay drain --pool --end`"


async def drain_pool(url: str, pool: str | None, wait: bool) -> Told:
    """Refuse new requests; with `wait` return when none is queued or running.

    Raises Problem where somebody ends the draining before that.
    """
    async with open_pool(url, pool) as library:
        operator = Operator(library)
        await operator.switch(draining=True)
        now = await operator.status()
        if wait:
            _say_what_is_waited_for(library.pool, now)
            now = await _until_dry(library.pool, operator, now)
        return Told(_sentence(library.pool, now), switches(library.pool, now))


async def end_drain(url: str, pool: str | None) -> Told:
    """Accept requests again."""
    async with open_pool(url, pool) as library:
        operator = Operator(library)
        await operator.switch(draining=False)
        now = await operator.status()
        words = f"pool {library.pool} accepts requests"
        if now["paused"]:
            words += f"; it is paused, `forebay resume --pool {library.pool}` ends that"
        return Told(words, switches(library.pool, now))


async def _until_dry(pool: str, operator: Operator, now: dict[str, Any]) -> dict[str, Any]:
    total = _left(now)
    with progress_bar(total, 0, _note(now)) as move:
        # Looked at again and again, as `status --watch` does: Redis tells nobody when it is dry.
        while _left(now):
            await asyncio.sleep(EVERY_S)
            now = await operator.status()
            move(max(0, total - _left(now)), _note(now))
            if not now["draining"]:
                raise Problem(f"somebody ended the draining of pool {pool}: {_note(now)}")
    return now


def _say_what_is_waited_for(pool: str, now: dict[str, Any]) -> None:
    if not _left(now):
        return
    if now["queued"] and now["paused"]:
        say(f"the pool is paused: what waits does not run; see `forebay resume --pool {pool}`")
    elif now["queued"] and not now["workers"]:
        say("no worker is alive: what waits does not run; see `forebay work --help`")
    say(f"new requests are refused; waiting for {_note(now)}")


def _sentence(pool: str, now: dict[str, Any]) -> str:
    how = f"drains: {_note(now)}" if _left(now) else "has drained: nothing is queued or running"
    return f"pool {pool} {how}; `forebay drain --pool {pool} --end` ends the draining"


def _note(now: dict[str, Any]) -> str:
    return f"{now['queued']:,} queued, {now['running']:,} running"


def _left(now: dict[str, Any]) -> int:
    return int(now["queued"]) + int(now["running"])
