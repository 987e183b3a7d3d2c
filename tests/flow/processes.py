"""Forebay's own processes under test, each with a log of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = ("shared", "producer", "worker")


async def until(
    holds: Callable[[], Awaitable[bool]], within_s: float, what: str, every_s: float = 0.02
) -> float:
    """Wait for another process's state, asking often; seconds until it held.

    Raises AssertionError naming `what` after `within_s`.
    """
    began = monotonic()
    while not await holds():
        if monotonic() - began > within_s:
            raise AssertionError(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(every_s)
    return monotonic() - began


class Child:
    """One child process; its output goes to `log`."""

    def __init__(self, module: str, arguments: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / c) for c in COMPONENTS)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._process.poll()

    def send(self, signal_number: signal.Signals) -> None:
        self._process.send_signal(signal_number)

    def kill(self) -> None:
        """As a crash would: SIGKILL, and reaped."""
        self._process.kill()
        self._process.wait()

    def stop(self, within_s: float = 20) -> int:
        """In order: SIGTERM; its exit code. Killed after `within_s`."""
        self._process.terminate()
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not stop within {within_s:g} s: {self.tail()}") from None

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
