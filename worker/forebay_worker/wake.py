"""One flag that wakes the take loop: an end is pending, a slot is free, a bell rang, a drain."""

from __future__ import annotations

import asyncio


class Wake:
    """Set by many, waited on by one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def up(self) -> None:
        """Let the waiting one look again."""
        self._event.set()

    @property
    def is_up(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        """Wait for `up`, and take it down again."""
        await self._event.wait()
        self._event.clear()
