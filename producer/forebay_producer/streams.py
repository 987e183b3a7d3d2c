"""Server-sent events to a client: chunks as they come, signs of life, one clean end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forebay_producer.answers import error_event
from forebay_producer.exchange import Exchange
from forebay_producer.inbox import Inbox
from forebay_producer.outcomes import ended_error, failed_body
from forebay_producer.reader import Left, Reader
from forebay_producer.tiers import splice_tier
from forebay_shared.errors import ForebayError
from forebay_shared.records import Result

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
WAITING = b": waiting\n"
"""A comment, its line ended once: with a blank line after it official SDKs see an event without
data and fail."""


def sse_data(event: bytes) -> bytes:
    """One event of this data."""
    if b"\n" in event or b"\r" in event:
        event = b"\ndata: ".join(event.splitlines())
    return b"data: " + event + b"\n\n"


async def chunk_groups(
    reader: Reader, inbox: Inbox, comment_every_s: float, frame: Callable[[int, bytes], bytes]
) -> AsyncIterator[bytes]:
    """The reader's chunks, framed, all that are there at a time; comments while none are."""
    while True:
        parts: list[bytes] = []
        while reader.chunks:
            parts.append(frame(*reader.next_chunk()))
        if parts:
            if reader.starved:
                inbox.ask(reader)
            yield b"".join(parts)
        elif reader.over:
            return
        elif not await reader.news(comment_every_s):
            yield WAITING


class StreamAnswer(Response):
    """Status and headers of an answer whose body comes in parts."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**headers, **STREAM_HEADERS})

    async def start(self, send: Send) -> None:
        """Send status and headers."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


class ExchangeStream(StreamAnswer):
    """The answer to a synchronous stream; closes its exchange."""

    def __init__(self, exchange: Exchange, comment_every_s: float) -> None:
        super().__init__(exchange.headers)
        self._exchange = exchange
        self._comment_every_s = comment_every_s

    def _frame(self, _: int, event: bytes) -> bytes:
        return sse_data(splice_tier(event, self._exchange.tier))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader, waited = self._exchange.reader, not self._exchange.reader.chunks
        try:
            self._exchange.begin()
            await self.start(send)
            if waited and not reader.over:
                await send_part(send, WAITING)
            groups = chunk_groups(reader, self._exchange.inbox, self._comment_every_s, self._frame)
            first = True
            async for group in groups:
                if reader.left is Left.CLIENT:
                    break
                if first and group is not WAITING:
                    self._exchange.first_event()
                    first = False
                await send_part(send, group)
            await send_part(send, self._last_words(), more=False)
        finally:
            self._exchange.close()

    def _last_words(self) -> bytes:
        outcome = self._exchange.outcome()
        if isinstance(outcome, Result) and outcome.state == "done":
            return b"data: [DONE]\n\n"
        return sse_data(outcome_event(outcome))


def outcome_event(outcome: Result | ForebayError) -> bytes:
    """The data of the error event for an outcome that is not `done`."""
    if isinstance(outcome, ForebayError):
        return error_event(outcome)
    return failed_body(outcome) or error_event(ended_error(outcome))


async def send_part(send: Send, part: bytes, *, more: bool = True) -> None:
    """Send a part of the body; waits while the client is slow."""
    await send({"type": "http.response.body", "body": part, "more_body": more})
