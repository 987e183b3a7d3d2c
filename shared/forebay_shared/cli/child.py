"""One child process of `forebay up`: kept running, and ended when told to.

A child never outlives us, however we end: the kernel sends it SIGTERM (Linux), or a guard process
does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from forebay_shared.cli.childlog import ChildLog
from forebay_shared.cli.lines import split_lines
from forebay_shared.cli.terminal import Problem
from forebay_shared.embedded.tie import Tie, default_tie, die_with, start_guard

FIRST_PAUSE_S, MOST_PAUSE_S = 0.5, 10.0
SETTLED_S = 5.0
"""Who lived so long had started well; the next pause is a short one."""
FALSE_STARTS = 3
"""So many ends in a row without ever having settled: another start would not help."""
BAD_OPTIONS_CODE = 2
HURRY_EVERY_S, HURRIES = 0.5, 10
DRAINS = b'"event": "draining"'
"""In the line with which a producer or worker tells that it has been told to stop."""


class Child:
    """Runs `python -m <arguments>` until `stop`; starts it again, later and later, when it ends.

    `keep` raises Problem where it cannot be started with these arguments.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: dict[str, str], log: ChildLog
    ) -> None:
        self.name = name
        # -P: what lies in the current folder is not what is meant.
        self._command = [sys.executable, "-P", "-m", *arguments]
        self._environment = environment
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._drains = asyncio.Event()
        self.tie: Tie = default_tie()
        self.first_pause_s = FIRST_PAUSE_S

    @property
    def pid(self) -> int | None:
        """Of the running process; None between two."""
        return self._process.pid if self._process else None

    async def keep(self) -> None:
        """Keep it running until `stop` has ended it."""
        try:
            pause_s, false_starts, settled = self.first_pause_s, 0, False
            while not self._stopping.is_set():
                code, lived_s = await self._live()
                if self._stopping.is_set():
                    return
                settled = settled or lived_s >= SETTLED_S
                false_starts = 0 if settled else false_starts + 1
                self._require_sense(code, false_starts)
                pause_s = self.first_pause_s if lived_s >= SETTLED_S else pause_s
                await self._pause(code, pause_s)
                pause_s = min(2 * pause_s, MOST_PAUSE_S)
        finally:
            self._ended.set()

    def _require_sense(self, code: int, false_starts: int) -> None:
        if code == BAD_OPTIONS_CODE or false_starts >= FALSE_STARTS:
            raise Problem(f"{self.name} cannot start ({_ending(code)}); its last words are above")

    async def _pause(self, code: int, pause_s: float) -> None:
        ending = f"{self.name} ended ({_ending(code)})"
        self._log.note(f"{ending}; it is started again in {pause_s:g} s")
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()

    async def stop(self, hurry: asyncio.Event, told_s: float = 0.0) -> None:
        """Ask it to end in order (SIGTERM) and wait; with `hurry` again and again, then kill it.

        One that says within `told_s` that it drains already is not asked: a second signal would
        hurry it.
        """
        self._stopping.set()
        if self._process is not None and told_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(told_s):
                    await self._drains.wait()
        if not self._drains.is_set():
            self._send(signal.SIGTERM)
        hurried = asyncio.create_task(hurry.wait())
        ended = asyncio.create_task(self._ended.wait())
        await asyncio.wait([hurried, ended], return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        for _ in range(HURRIES):
            if ended.done():
                return
            self._send(signal.SIGTERM)
            await asyncio.wait([ended], timeout=HURRY_EVERY_S)
        self._send(signal.SIGKILL)
        await ended

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):  # it ended just now
                self._process.send_signal(number)

    async def _live(self) -> tuple[int, float]:
        """One life: its exit code, and how long it was in seconds."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        life, held = os.pipe() if self.tie == "guard" else (-1, -1)
        try:
            self._process = await self._spawn([held] if held >= 0 else [])
            guarding = start_guard(self._process.pid, life) if life >= 0 else None
        finally:
            for descriptor in (life, held):
                if descriptor >= 0:
                    os.close(descriptor)
        if self._stopping.is_set():  # told so while it was being born
            self._send(signal.SIGTERM)
        try:
            async for line in split_lines(_pieces(self._process)):
                if DRAINS in line:
                    self._drains.set()
                self._log.write(self.name, line)
            code = await self._process.wait()
        finally:
            if guarding is not None:
                guarding.communicate()
        self._process = None
        self._drains.clear()
        return code, loop.time() - started_s

    async def _spawn(self, keep_fds: Sequence[int]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # ^C at the terminal is for us; we stop children in order
            pass_fds=keep_fds,
            preexec_fn=die_with(os.getpid()) if self.tie == "kernel" else None,
        )


async def _pieces(process: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
    assert process.stdout is not None
    while piece := await process.stdout.read(65_536):
        yield piece


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
