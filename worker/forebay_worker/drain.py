"""Leaving: finish what runs within the grace, give the rest back, and be gone on time.

request        nothing new is taken; what an open take still grants is given back
within grace   running requests finish and their results are written
after it, or at the second request: what still runs is given back without blame
grace + 2 s    the process ends, whatever Redis does; leases that are left run out
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from forebay_shared.logs import event
from forebay_worker.runs import Runs, Stop

AFTER_GRACE_S = 2.0
"""After the grace, or a second request, the process is gone within this time."""
HAND_OVER_S = 1.2
"""Of that, for giving back what is left and for the answer to an open take."""
LEAVE_S = 0.5
"""Of that, for leaving the registry and closing; the rest is for a busy machine."""


class Drain:
    """What was asked for: `started` by the first request, `hurry` by the second."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.hurry = asyncio.Event()

    def request(self, why: str) -> None:
        """Drain; asked again, give back at once what still runs."""
        if not self.started.is_set():
            event("draining", why=why)
            self.started.set()
        elif not self.hurry.is_set():
            event("draining at once", why=why)
            self.hurry.set()


async def run_dry(drain: Drain, runs: Runs, take_idle: asyncio.Event, grace_s: float) -> bool:
    """Return when nothing is held any more, or the time is over; whether all was handed over.

    `take_idle` is set while no take is open and no end waits to be written.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + grace_s
    await _first(drain.hurry.wait(), _nothing_left(runs, take_idle), until_s=ends_s)
    if runs.empty.is_set() and not drain.hurry.is_set():
        return take_idle.is_set()
    left = runs.running()
    event("give back", running=len(left), unwritten=len(runs) - len(left))
    for run in left:
        run.stop(Stop.RECALLED)
    ends_s = min(ends_s, loop.time())
    await _first(_handed_over(runs, take_idle), until_s=ends_s + HAND_OVER_S)
    return runs.empty.is_set() and take_idle.is_set()


async def _nothing_left(runs: Runs, take_idle: asyncio.Event) -> None:
    await runs.empty.wait()
    # An open take may still grant something; Redis has this long to say so.
    until_s = asyncio.get_running_loop().time() + HAND_OVER_S
    await _first(_handed_over(runs, take_idle), until_s=until_s)


async def _handed_over(runs: Runs, take_idle: asyncio.Event) -> None:
    while len(runs) or not take_idle.is_set():
        await runs.empty.wait()
        await take_idle.wait()


async def _first(*waits: Awaitable[object], until_s: float) -> None:
    """Return when one of these has, or the time has come; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    most_s = max(0.0, until_s - asyncio.get_running_loop().time())
    try:
        await asyncio.wait(tasks, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
