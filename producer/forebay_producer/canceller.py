"""Cancels what nobody waits for any more, in the background and over an outage of Redis."""

from __future__ import annotations

import asyncio
import time
from itertools import islice

from forebay_producer.supervise import keep_up
from forebay_shared import logs
from forebay_shared.calls import Intake

_AT_ONCE = 32
_MOST = 10_000


class Canceller:
    """Ids to cancel, each tried until Redis answers or `keep_s` are over."""

    def __init__(self, intake: Intake, keep_s: float) -> None:
        self._intake = intake
        self._keep_s = keep_s
        self._until_s: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._until_s)

    def add(self, request_id: str) -> None:
        """Cancel this request soon. Beyond 10,000 the one that waits longest is given up."""
        while len(self._until_s) >= _MOST:
            self._give_up(next(iter(self._until_s)))
        self._until_s[request_id] = time.monotonic() + self._keep_s
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(keep_up("cancel", self._cancel_all))

    async def _cancel_all(self) -> None:
        while self._until_s:
            for request_id, until_s in list(self._until_s.items()):
                if until_s < time.monotonic():
                    self._give_up(request_id)
            batch = list(islice(self._until_s, _AT_ONCE))
            async with asyncio.TaskGroup() as group:
                for request_id in batch:
                    group.create_task(self._cancel(request_id))

    async def _cancel(self, request_id: str) -> None:
        state = await self._intake.cancel(request_id)
        self._until_s.pop(request_id, None)
        logs.event("cancel", request=request_id, state=state, why="client_gone")

    def _give_up(self, request_id: str) -> None:
        del self._until_s[request_id]
        logs.event("cancel_given_up", 30, request=request_id)

    async def finish(self) -> None:
        """Wait until nothing is left to cancel; cancelling this gives up the rest."""
        if self._task is not None:
            await self._task
