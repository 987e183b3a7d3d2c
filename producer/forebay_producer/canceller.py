"""Tells Redis whom clients have left, in the background and over an outage of Redis.

Whether the request ends then, the library decides: not while another replica reads it, and not
when it was submitted to go on by itself.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice

from forebay_producer.inbox import Inbox
from forebay_producer.supervise import keep_up
from forebay_shared import logs
from forebay_shared.calls import Intake

_AT_ONCE = 32
_MOST = 10_000


class Canceller:
    """Ids of requests to leave, each tried until Redis answers or `keep_s` are over."""

    def __init__(self, intake: Intake, inbox: Inbox, keep_s: float) -> None:
        self._intake = intake
        self._inbox = inbox
        self._keep_s = keep_s
        self._until_s: dict[str, float] = {}
        self._in_doubt: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._until_s)

    def leave(self, request_id: str) -> None:
        """Leave this request soon, unless somebody here reads it again by then.

        Beyond 10,000 the one that waits longest is given up.
        """
        while len(self._until_s) >= _MOST:
            self._give_up(next(iter(self._until_s)))
        self._until_s[request_id] = time.monotonic() + self._keep_s
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(keep_up("leave", self._leave_all))

    def leave_in_doubt(self, request_id: str) -> None:
        """Take back a request whose admit was not answered, though it came only later."""
        self._in_doubt.add(request_id)
        self.leave(request_id)

    async def _leave_all(self) -> None:
        while self._until_s:
            for request_id, until_s in list(self._until_s.items()):
                if until_s < time.monotonic():
                    self._give_up(request_id)
            batch = list(islice(self._until_s, _AT_ONCE))
            async with asyncio.TaskGroup() as group:
                for request_id in batch:
                    group.create_task(self._leave(request_id))

    async def _leave(self, request_id: str) -> None:
        in_doubt = request_id in self._in_doubt
        if in_doubt or not self._inbox.is_read(request_id):
            # In doubt, nobody but this replica knows the id: without an inbox it ends in any case.
            inbox = "" if in_doubt else self._inbox.name
            state = await self._intake.leave(request_id, inbox, in_doubt=in_doubt)
            logs.event("leave", request=request_id, state=state, in_doubt=in_doubt)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._until_s.pop(request_id, None)
        self._in_doubt.discard(request_id)

    def _give_up(self, request_id: str) -> None:
        self._forget(request_id)
        logs.event("leave_given_up", 30, request=request_id)

    async def finish(self) -> None:
        """Wait until nothing is left to leave; cancelling this gives up the rest."""
        if self._task is not None:
            await self._task
