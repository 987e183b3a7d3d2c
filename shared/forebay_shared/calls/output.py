"""Reading back what was emitted for a request: what a later attempt needs to go on after it."""

from __future__ import annotations

from typing import Any

from forebay_shared.calls.library import ITEMS_PER_CALL, Library

Emitted = tuple[bytes, bytes]
"""A chunk as it was emitted: (event, resume)."""


class Output:
    """Reads output streams. Chunks never change once they are there, so no step is needed."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def prompt(self, request_id: str) -> bytes:
        """What an emitted chunk had before the `;` of its resume; empty where none had."""
        kept: Any = await self._library.redis.get(self._library.keys.prompt(request_id))
        return kept or b""

    async def page(self, request_id: str, after: int, until: int) -> list[Emitted]:
        """The chunks with offsets above `after` up to `until`, at most 100; raises what Redis does.

        Fewer than asked for mean that Redis has lost some.
        """
        key = self._library.keys.output(request_id)
        rows: Any = await self._library.redis.xrange(
            key, f"{after + 1}-0", f"{until}-0", count=ITEMS_PER_CALL
        )
        return [(fields[b"event"], fields[b"resume"]) for _, fields in rows]
