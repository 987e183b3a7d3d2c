"""Duties that must outlive any error: run, and run again."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable

from forebay_shared import logs
from forebay_shared.connect import redis_away

_LEAST_S, _MOST_S = 0.1, 2.0
_CANCEL_AGAIN_S = 0.1


async def keep_up(name: str, duty: Callable[[], Awaitable[None]]) -> None:
    """Run `duty` until cancelled, again after each error, with waits of 0.1 to 2 s between.

    Redis being away is told once; any other error is logged with its trace each time.
    """
    wait_s, away = _LEAST_S, False
    while True:
        started_s = asyncio.get_running_loop().time()
        try:
            await duty()
            return
        except Exception as raised:  # noqa: BLE001 - whatever it is, the duty goes on
            error = first_of(raised)
            if asyncio.get_running_loop().time() - started_s > 2 * _MOST_S:
                wait_s, away = _LEAST_S, False
            if not redis_away(error):
                logs.failure("duty_failed", error, duty=name)
            elif not away:
                logs.event("redis_away", duty=name, why=type(error).__name__)
            away = redis_away(error)
        await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))
        wait_s = min(2 * wait_s, _MOST_S)


async def end_tasks(tasks: Iterable[asyncio.Task[None]], within_s: float) -> None:
    """Cancel tasks until they have ended, for `within_s` at most.

    Again and again, since a cancellation can get lost: `asyncio.wait_for`, through which redis-py
    sends, drops one that comes together with its result (before Python 3.12).
    """
    until_s = time.monotonic() + within_s
    pending = {task for task in tasks if not task.done()}
    while pending and time.monotonic() < until_s:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_S)


def exit_after(wait_s: float) -> None:
    """Ends this process hard, with code 0, should it still be there after so long."""
    timer = threading.Timer(wait_s, os._exit, [0])
    timer.daemon = True
    timer.start()


def first_of(raised: Exception) -> Exception:
    """The error, or of a task group's errors the first: they have one cause mostly."""
    while isinstance(raised, ExceptionGroup):
        raised = raised.exceptions[0]
    return raised
