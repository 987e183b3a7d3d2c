"""One flag that wakes the take loop: an end is pending, a slot is free, a bell rang, a drain."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Wake:
    """Set by many, waited on by one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def up(self) -> None:
        """Let the waiting one look again."""
        self._event.set()

    async def wait(self, most_s: float | None = None) -> bool:
        """Wait for `up`, at most `most_s`; whether it came. Clears it."""
        if not self._event.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(most_s):
                    await self._event.wait()
        came = self._event.is_set()
        self._event.clear()
        return came
