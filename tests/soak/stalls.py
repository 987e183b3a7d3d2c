"""Tells slow commands from a processor that stood still, or ran slower than it does.

A host may take a processor away, for milliseconds or in many small slices, and the slow log counts
by the wall clock. A witness process sits on the server's processor at a higher priority. It sleeps
a millisecond at a time, then reads the same text once: nobody else there delays it (but for the
kernel, which halts all real-time processes where they take 95 % of a second). Where it wakes late
the processor stood still; where the reading takes longer than it mostly does, the processor was
that much slower. The slow log is read each SEEK_S, so that it is known to some 20 ms when each
entry came.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from redis.asyncio import Redis

SEEK_S = 0.02
NAP_S = 0.001
LATE_S = 0.00025
"""So much later than its time a nap ends only in a stall: wake-ups alone take a third of it."""
SLOWER = 1.25
"""A reading so many times as long as usual is one of a slower processor.

Or of caches that the server's own work has emptied, which may take half as long again: near 5 ms
a command may excuse itself. And of several commands of one look, each may use the same stall.
"""
TEXT = json.dumps({f"name-{number}": [number, str(number), None] for number in range(40)})
"""What the witness reads: some 20 microseconds of small objects, as a function's are."""
SLOW_US = 5_000
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


class Nap(NamedTuple):
    """One round of the witness: when it was to wake, when it woke, how long it read (seconds)."""

    due: float
    woke: float
    read_s: float


class Stall(NamedTuple):
    """Between two moments (monotonic seconds) the processor did so much less than usual.

    `share` is 1 where it stood still.
    """

    begun: float
    ended: float
    share: float = 1.0

    def within(self, begun: float, ended: float) -> float:
        """How many seconds of work it took from between two moments."""
        return self.share * max(0.0, min(self.ended, ended) - max(self.begun, begun))


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
    return [slow for slow in found if slow.took_s - _met(slow, stalls) < SLOW_US / 1e6]


def _met(slow: Slow, stalls: list[Stall]) -> float:
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


def stalls_of(naps: list[Nap]) -> Iterator[Stall]:
    """Where the processor stood still, and where a reading took SLOWER times the median.

    A reading counts as the middle one of three: a stall that met but one of them was short.
    """
    usual_s = median(nap.read_s for nap in naps) if naps else 0.0
    for before, nap, after in zip(naps, naps[1:], naps[2:], strict=False):
        if nap.woke - nap.due > LATE_S:
            yield Stall(nap.due, nap.woke)
        _, read_s, _ = sorted((before.read_s, nap.read_s, after.read_s))
        if read_s > SLOWER * usual_s:
            yield Stall(before.woke, nap.due, 1 - usual_s / read_s)


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
        return [Stall(*one) for one in json.loads(said)]

    def kill(self) -> None:
        """End it unheard."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()


def _name(command: bytes) -> str:
    """A command without its keys; of a function its step."""
    words = command.decode(errors="replace").split()
    return words[1].rpartition("_")[0] if words[0] == "FCALL" else words[0]


def _witness(processor: int) -> None:
    """Say that it begins, nap until somebody writes to stdin, print the stalls."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
    os.sched_setaffinity(0, {processor})
    os.set_blocking(0, False)
    gc.disable()
    print("ready", flush=True)
    naps: list[Nap] = []
    while not _asked():
        naps.append(_nap())
    print(json.dumps(list(stalls_of(naps))))


def _nap() -> Nap:
    due = time.monotonic() + NAP_S
    time.sleep(NAP_S)
    woke = time.monotonic()
    json.loads(TEXT)
    return Nap(due, woke, time.monotonic() - woke)


def _asked() -> bool:
    try:
        os.read(0, 1)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    _witness(int(sys.argv[1]))
