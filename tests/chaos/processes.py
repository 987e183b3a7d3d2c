"""Forebay's processes as a supervisor sees them: each has a name and a place that outlive it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic

import aiohttp
from tests.chaos.history import History
from tests.flow.processes import COMPONENTS

SKEW = Path(__file__).resolve().parent / "skew"
MOST_SKEW_S = 600.0
START_S = 40.0
CHECK_S = 0.05


@dataclass(slots=True)
class Process:
    """One place for a process. `arguments` stay the same over its lives, so does `probe`.

    `product`: the checkout whose code runs. `dice`: each life has another wall clock.
    """

    name: str
    module: str
    arguments: Sequence[str]
    probe: str
    log: Path
    product: Path
    dice: Random
    history: History
    told_to_end: bool = False
    lives: int = 0
    _child: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Begin a life; returns before it is ready."""
        self.told_to_end = False
        self.lives += 1
        skew_s = round(self.dice.uniform(-MOST_SKEW_S, MOST_SKEW_S), 3)
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", self.module, *self.arguments],
                env=self._environment(skew_s),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        self.history.write("life", name=self.name, pid=self.pid, skew_s=skew_s)

    def _environment(self, skew_s: float) -> Mapping[str, str]:
        path = [SKEW, *(self.product / component for component in COMPONENTS)]
        return os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "CHAOS_SKEW_S": str(skew_s),
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

    async def ready(self, http: aiohttp.ClientSession, within_s: float = START_S) -> None:
        """Wait until its probe says 200. Raises NotReady, with its last words."""
        until_s = monotonic() + within_s
        while not await self._probed(http):
            if self.code is not None or monotonic() > until_s:
                raise NotReady(f"{self.name} is not ready, exit code {self.code}: {self.tail()}")
            await asyncio.sleep(CHECK_S)

    async def _probed(self, http: aiohttp.ClientSession) -> bool:
        try:
            async with http.get(self.probe, timeout=aiohttp.ClientTimeout(2)) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def complaints(self) -> Iterator[str]:
        """Lines of its log that tell of an error: our own events, and what Python prints."""
        for line in self.log.read_text(errors="replace").splitlines():
            if '"level": "error"' in line or line.startswith("Traceback"):
                yield line

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


class NotReady(Exception):
    """A process did not come up."""
