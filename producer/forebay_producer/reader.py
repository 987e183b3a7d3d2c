"""One client that waits for news of one request: what it has, and what came for it."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum, auto

from forebay_shared.calls.requests import UNKNOWN, Seen
from forebay_shared.records import TERMINAL

_DRY = 3
"""So many replies without the chunks that must be there mean that they are gone."""


class Left(Enum):
    """Why a reader stops before the request has ended."""

    CLIENT = auto()
    """The client hung up."""
    DRAIN = auto()
    """This replica stops."""
    VANISHED = auto()
    """The record or its output exists no more: a failover, or its time is over."""
    OVERDUE = auto()
    """The deadline is over and Redis has not said so."""


class Reader:
    """Waits for the end of a request and, from `have` on, for its chunks.

    `have` UNKNOWN: only the result counts. Filled by the inbox, emptied by one task.
    """

    __slots__ = (
        "_dry", "_got", "_news", "armed", "asked_s", "buffered", "chunks", "dry", "ended", "have",
        "left", "most_bytes", "request_id", "result", "starved", "state",
    )  # fmt: skip

    def __init__(self, request_id: str, have: int = UNKNOWN, most_bytes: int = 256 * 1024) -> None:
        self.request_id = request_id
        self.have = have
        self.most_bytes = most_bytes
        self.chunks: deque[tuple[int, bytes]] = deque()
        self.buffered = 0
        self.state = ""
        self.result = b""
        self.ended = False
        self.left: Left | None = None
        self.armed = False
        """Whether the request is known to be stored; before that a missing record says nothing."""
        self.starved = False
        """Whether news was left in Redis because the client is slow."""
        self.asked_s = 0.0
        self.dry = False
        """Whether the last reply brought nothing of what is there."""
        self._dry = 0
        self._got = 0
        self._news = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether no more chunks should be asked for: a slow client must not fill this process."""
        return self.buffered >= self.most_bytes

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.ended or self.left is not None

    def take_in(self, seen: Seen, *, cut: bool = False) -> bool:
        """Note what a reply saw; whether to ask again at once since more is there.

        `cut`: the reply was full, so what it lacks may be there all the same.
        """
        if not seen.state:
            if self.armed:
                self.leave(Left.VANISHED)
            return False
        if seen.offset < self._got:
            # A failover has lost chunks that this client has read: what comes in their place may
            # be another text.
            self.leave(Left.VANISHED)
            return False
        for offset, event in seen.chunks:
            self.chunks.append((offset, event))
            self.buffered += len(event)
            self.have = self._got = offset
        if seen.ended:
            self.state, self.result, self.ended = seen.state, seen.result, True
        if self.chunks or self.ended:
            self._news.set()
        return not self.ended and self._is_behind(seen, cut)

    def _is_behind(self, seen: Seen, cut: bool) -> bool:
        terminal = seen.state in TERMINAL
        if not (terminal or (self.have != UNKNOWN and seen.offset > self.have)):
            return False
        self.dry = not seen.chunks
        if cut:
            return True
        self._dry = self._dry + 1 if self.dry else 0
        if self._dry < _DRY:
            return True
        if terminal:
            self.leave(Left.VANISHED)
        return False  # the floor asks again

    def next_chunk(self) -> tuple[int, bytes]:
        """The oldest chunk, as (offset, event); there must be one."""
        offset, event = self.chunks.popleft()
        self.buffered -= len(event)
        return offset, event

    def leave(self, why: Left) -> None:
        """Stop waiting; the first reason counts, and none after the end."""
        if not self.over:
            self.left = why
            self._news.set()

    async def news(self, within_s: float) -> bool:
        """Whether a chunk or the end came within so many seconds."""
        if self.chunks or self.over:
            return True
        self._news.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def end(self) -> None:
        """Wait until the reader is over; chunks are kept."""
        while not self.over:
            self._news.clear()
            await self._news.wait()
