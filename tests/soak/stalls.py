"""Tells slow commands from a processor that stood still.

A host may take a processor away for milliseconds, and the slow log counts by the wall clock. A
witness process sits on the server's processor at a higher priority and sleeps a millisecond at a
time: nobody else there delays it (but for the kernel, which halts all real-time processes where
they take 95 % of a second). The slow log is read each SEEK_S, so that it is known to some 20 ms
when each entry came.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

from redis.asyncio import Redis

SEEK_S = 0.02
NAP_S = 0.001
LATE_S = 0.00025
"""So much later than its time a nap ends only in a stall: wake-ups alone take a third of it."""
SLOW_US = 5_000
FUNCTION = "forebay_"
SLOW_LENGTH = 10_000


@dataclass(frozen=True, slots=True)
class Slow:
    """A command of `took_s`, ended after one look was asked for and before the next was answered.

    Monotonic seconds. Not after the first was answered: who asked may have waited for its own
    processor meanwhile, while the server went on.
    """

    name: str
    took_s: float
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Stall:
    """The processor stood still between two moments (monotonic seconds)."""

    begun: float
    ended: float

    def within(self, begun: float, ended: float) -> float:
        """How much of it lay between two moments, in seconds."""
        return max(0.0, min(self.ended, ended) - max(self.begun, begun))


@dataclass(slots=True)
class SlowLog:
    """The server's slow log, emptied as it fills: its entries take the server's memory."""

    redis: Redis
    found: list[Slow] = field(default_factory=list)
    _asked: float = field(default_factory=time.monotonic)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Log from now on, and look from now on."""
        await self.redis.config_set("slowlog-log-slower-than", SLOW_US)
        await self.redis.config_set("slowlog-max-len", SLOW_LENGTH)
        await self.redis.slowlog_reset()
        self._asked = time.monotonic()
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Look once more, then no longer. Raises what a look has raised."""
        self._stop.set()
        if self._task is not None:
            await self._task

    def abandon(self) -> None:
        """Look no more, whatever Redis does."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while not self._stop.is_set():
            await self._look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), SEEK_S)
        await self._look()

    async def _look(self) -> None:
        pipe = self.redis.pipeline(transaction=True)
        pipe.slowlog_get(SLOW_LENGTH)
        pipe.slowlog_reset()
        before, self._asked = self._asked, time.monotonic()
        entries, _ = await pipe.execute()
        after = time.monotonic()
        for one in entries:
            took_s = one["duration"] / 1e6
            self.found.append(Slow(_name(one["command"]), took_s, before, after))


def explained(found: list[Slow], stalls: list[Stall]) -> list[Slow]:
    """The slow commands that may not have been slow but for the stalls that met them."""
    looks = groupby(found, key=attrgetter("before", "after"))
    return [slow for _, look in looks for slow in _excused(list(look), stalls)]


def _excused(look: list[Slow], stalls: list[Stall]) -> Iterator[Slow]:
    """Those of one look: functions run one after another, so that each stall excuses once.

    A command within a function met what the function met.
    """
    first, after = min(one.before - one.took_s for one in look), look[0].after
    left_s = sum(one.within(first, after) for one in stalls)
    for slow in sorted(look, key=attrgetter("took_s")):
        needed_s = slow.took_s - SLOW_US / 1e6
        if needed_s < min(left_s, met(slow, stalls)):
            left_s -= needed_s if slow.name.startswith(FUNCTION) else 0.0
            yield slow


def met(slow: Slow, stalls: list[Stall]) -> float:
    """Most seconds of stalls that the command can have met, whenever it began."""
    first, last = slow.before - slow.took_s, slow.after - slow.took_s
    near = [one for one in stalls if one.within(first, slow.after)]
    starts = [first, last, *(one.begun for one in near)]
    starts += [one.ended - slow.took_s for one in near]
    return max(
        sum(one.within(start, start + slow.took_s) for one in near)
        for start in starts
        if first <= start <= last
    )


def summary(found: list[Slow]) -> dict[str, Any]:
    """How many, the longest, and which they were."""
    most_ms = max((one.took_s * 1e3 for one in found), default=0.0)
    names = Counter(one.name for one in found)
    return {"count": len(found), "most_ms": round(most_ms, 3), "names": dict(names)}


class Witness:
    """The process on the server's processor; none where this user has no right to it."""

    def __init__(self, process: Process | None) -> None:
        self._process = process

    @classmethod
    async def beside(cls, pid: int) -> Witness:
        """Give the server a processor on which nothing but the witness goes before it."""
        try:
            processor = max(os.sched_getaffinity(pid))
            os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
            os.sched_setaffinity(pid, {processor})
        except (AttributeError, OSError):  # no Linux, or no right
            return cls(None)
        command = [sys.executable, "-m", "tests.soak.stalls", str(processor)]
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        assert process.stdout is not None
        return cls(process if await process.stdout.readline() else None)

    @property
    def stands(self) -> bool:
        """Whether it sees."""
        return self._process is not None

    async def stalls(self) -> list[Stall]:
        """All that it saw; it ends."""
        if self._process is None:
            return []
        said, _ = await self._process.communicate(b"\n")
        self._process = None
        return [Stall(begun, ended) for begun, ended in json.loads(said)]

    def kill(self) -> None:
        """End it unheard."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def _name(command: bytes) -> str:
    """A command without its keys; of a function its step."""
    words = command.decode(errors="replace").split()
    return words[1].rpartition("_")[0] if words[0] == "FCALL" else words[0]


def _witness(processor: int) -> None:
    """Say that it begins, nap until somebody writes to stdin, print when naps were long."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
    os.sched_setaffinity(0, {processor})
    os.set_blocking(0, False)
    print("ready", flush=True)
    stalls: list[tuple[float, float]] = []
    last = time.monotonic()
    while not _asked():
        time.sleep(NAP_S)
        now = time.monotonic()
        if now - last > NAP_S + LATE_S:
            stalls.append((last + NAP_S, now))
        last = now
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # the server has work to do
    print(json.dumps(stalls))


def _asked() -> bool:
    try:
        os.read(0, 1)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    _witness(int(sys.argv[1]))
