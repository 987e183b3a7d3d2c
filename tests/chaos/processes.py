"""Forebay's processes as a supervisor sees them: each has a name and a place that outlive it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Protocol

import aiohttp
from tests.chaos.history import History
from tests.chaos.library_copy import Product
from tests.flow.processes import COMPONENTS

SKEW = Path(__file__).resolve().parent / "skew"
MOST_SKEW_S = 600.0
START_S = {"sim": 40.0, "vllm": 120.0}
CHECK_S = 0.05
CUT_MEANWHILE = re.compile(r"future: <Future finished exception=(Connection\w+|BrokenPipe)Error\(")
"""asyncio's own words where a connection breaks in the moment in which its reader is cancelled."""


class NotReady(Exception):
    """A process did not come up."""


class Place(Protocol):
    """A place for a process, one life after another; `probe` says 200 when it serves."""

    name: str
    probe: str
    log: Path
    told_to_end: bool
    lives: int

    def start(self) -> None:
        """Begin a life; returns before it is ready."""

    @property
    def pid(self) -> int: ...

    @property
    def code(self) -> int | None:
        """Exit code of the last life, or None while it runs."""

    def send(self, number: signal.Signals) -> None: ...

    def kill(self) -> None:
        """As a crash would; reaped."""

    def complaints(self) -> Iterator[str]:
        """Lines of its log that tell of an error."""


@dataclass(slots=True)
class Process:
    """One place for a process of ours. `arguments` stay the same over its lives, so does `probe`.

    `dice`: each life has another wall clock, and the code of any of the `products`.
    """

    name: str
    module: str
    arguments: Sequence[str]
    probe: str
    log: Path
    products: Sequence[Product]
    dice: Random
    history: History
    told_to_end: bool = False
    lives: int = 0
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Begin a life; returns before it is ready."""
        self.told_to_end = False
        self.lives += 1
        skew_s = self._new_skew()
        product = self.dice.choice(self.products)
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", self.module, *self.arguments],
                env=self._environment(product),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.history.write(
            "life", name=self.name, pid=self.pid, skew_s=skew_s, library=product.library
        )

    def jump(self) -> None:
        """Set the wall clock of the running process to another time."""
        self.history.write("clock", pid=self.pid, skew_s=self._new_skew())

    def _new_skew(self) -> float:
        skew_s = round(self.dice.uniform(-MOST_SKEW_S, MOST_SKEW_S), 3)
        self._clock.touch()
        with self._clock.open("r+b") as file:  # in place: a running process has it mapped
            file.write(struct.pack("=q", int(skew_s * 1e9)))
        return skew_s

    @property
    def _clock(self) -> Path:
        return self.log.with_suffix(".clock")

    def _environment(self, product: Product) -> Mapping[str, str]:
        path = [SKEW, *(product.folder / component for component in COMPONENTS)]
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "CHAOS_CLOCK": str(self._clock),
        }

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None else 0

    @property
    def code(self) -> int | None:
        """Exit code of the last life, or None while it runs."""
        return None if self._child is None else self._child.poll()

    def send(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    def kill(self) -> None:
        """As a crash would; reaped."""
        self.told_to_end = True
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    async def drain(self, within_s: float) -> int | None:
        """SIGTERM; its exit code, or None where it had to be killed after `within_s`."""
        self.told_to_end = True
        self.send(signal.SIGTERM)
        if self._child is None:
            return None
        try:
            return await asyncio.to_thread(self._child.wait, within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def complaints(self) -> Iterator[str]:
        """Lines of its log that tell of an error: our own events, and what Python prints."""
        before = ""
        for line in self.log.read_text(errors="replace").splitlines():
            told = '"level": "error"' in line or line.startswith("Traceback")
            if told and not CUT_MEANWHILE.match(before):
                yield line
            before = line


async def until_ready(place: Place, http: aiohttp.ClientSession, within_s: float) -> None:
    """Wait until its probe says 200. Raises NotReady, with its last words."""
    until_s = monotonic() + within_s
    while not await _probed(place, http):
        if place.code is not None or monotonic() > until_s:
            raise NotReady(f"{place.name} is not ready, exit code {place.code}: {tail(place)}")
        await asyncio.sleep(CHECK_S)


async def _probed(place: Place, http: aiohttp.ClientSession) -> bool:
    try:
        async with http.get(place.probe, timeout=aiohttp.ClientTimeout(2)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def tail(place: Place) -> str:
    """The end of its log."""
    return "\n".join(place.log.read_text(errors="replace").splitlines()[-20:])
