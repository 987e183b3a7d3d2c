"""Producers as processes of their own, which get real signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from forebay_producer.command import serve; serve()"


class Process:
    """`forebay serve` as a child; its log events in `events`."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self.events: list[dict[str, Any]] = []
        self.noise: list[str] = []
        self._news = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.child.stderr is not None
        async for line in self.child.stderr:
            async with self._news:
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    self.noise.append(line.decode())
                self._news.notify_all()

    async def wait_event(self, name: str, within_s: float = 10) -> dict[str, Any]:
        """The first event of this name."""

        def found() -> dict[str, Any] | None:
            return next((one for one in self.events if one["event"] == name), None)

        async with asyncio.timeout(within_s), self._news:
            await self._news.wait_for(lambda: found() is not None)
        event = found()
        assert event is not None
        return event

    async def address(self) -> str:
        return str((await self.wait_event("serving"))["address"])

    async def exit_code(self, within_s: float = 10) -> int:
        async with asyncio.timeout(within_s):
            code = await self.child.wait()
        await self._reading
        return code

    async def kill(self) -> None:
        if self.child.returncode is None:
            self.child.kill()
            await self.child.wait()
        await self._reading


@contextlib.asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[Process]:
    """`forebay serve` with these arguments; killed at the end if it still runs."""
    path = os.pathsep.join(str(ROOT / part) for part in ("producer", "worker", "shared"))
    process = Process(
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MAIN, *arguments,
            env={**os.environ, "PYTHONPATH": path},
            stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL,
        )
    )  # fmt: skip
    try:
        yield process
    finally:
        await process.kill()
