"""Reading a request's events along, or again, on any replica: with ids and a clear end."""

from __future__ import annotations

import asyncio
import json

from starlette.types import Receive, Scope, Send

from forebay_producer.exchange import hang_up, outcome_of
from forebay_producer.pool import Pool
from forebay_producer.reader import Left, Reader
from forebay_producer.streams import (
    StreamAnswer,
    chunk_groups,
    outcome_event,
    send_part,
    sse_data,
)
from forebay_shared.records import Result


class FollowStream(StreamAnswer):
    """Chunks as `id: <offset>` and data; then `event: error` where it failed, and `event: end`.

    A stream that closes without `end` was cut: read on with `Last-Event-ID`.
    """

    def __init__(self, pool: Pool, reader: Reader, comment_every_s: float) -> None:
        super().__init__({"x-request-id": reader.request_id})
        self._pool = pool
        self._reader = reader
        self._comment_every_s = comment_every_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader, inbox = self._reader, self._pool.inbox
        watch = asyncio.create_task(hang_up(receive, reader))
        try:
            inbox.arm(reader)
            inbox.ask(reader)  # adds this replica to those that are told
            await self.start(send)
            async for group in chunk_groups(reader, inbox, self._comment_every_s, _frame):
                if reader.left is Left.CLIENT:
                    break
                await send_part(send, group)
            await send_part(send, _last_words(reader), more=False)
        finally:
            watch.cancel()
            self._pool.close_reader(reader)


def _frame(offset: int, event: bytes) -> bytes:
    return b"id: %d\n" % offset + sse_data(event)


def _last_words(reader: Reader) -> bytes:
    words = b""
    outcome = outcome_of(reader)
    if not (isinstance(outcome, Result) and outcome.state == "done"):
        words = b"event: error\n" + sse_data(outcome_event(outcome))
    if reader.left is not None:
        return words  # not the end: it may be read on elsewhere
    return words + b"event: end\n" + sse_data(json.dumps({"state": reader.state}).encode())
