"""The take loop: the only one that takes, and the one that writes ends.

Ends that are pending go out together with the next take, in one call or in two that are sent at
once, so that under load a request costs at most one call. A take that was not answered may have
granted requests, so the *same* call is repeated until it is answered and no other is made
meanwhile; that it also carries the same ends is harmless.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from redis.exceptions import ResponseError

from forebay_shared.calls import Ending, Grant, Leases, Take, Taken
from forebay_shared.calls.library import HEAVY_ITEMS_PER_CALL
from forebay_shared.logs import failure
from forebay_shared.metrics import Metrics
from forebay_worker.bells import Bells
from forebay_worker.gate import Gate
from forebay_worker.link import Link
from forebay_worker.outbox import Outbox
from forebay_worker.runs import Run
from forebay_worker.wake import Wake


class Taker:
    """Sends ends, takes work, and hands each grant to `start`."""

    def __init__(
        self,
        leases: Leases,
        gate: Gate,
        outbox: Outbox,
        bells: Bells,
        wake: Wake,
        link: Link,
        metrics: Metrics,
    ) -> None:
        self._leases = leases
        self._gate = gate
        self._outbox = outbox
        self._bells = bells
        self._wake = wake
        self._link = link
        self._metrics = metrics
        self._call = 0
        self._open: Take | None = None
        self._more = False
        self.start: Callable[[Grant], None] = lambda grant: None
        self.idle = asyncio.Event()

    async def once(self) -> None:
        """Wait until there is something to send or to take, and do it."""
        await self._until_due()
        await self.step()

    async def step(self) -> None:
        """Send what is pending, and take if a slot is free; returns when Redis has answered."""
        self.idle.clear()
        await self._release()
        most = self._most()
        batch = self._outbox.endings(most)
        take = self._open = self._open or self._next_take(self._room(len(batch), most))
        try:
            await self._send(batch, take)
        except ResponseError as error:
            if not batch:
                raise
            failure("finish refused", error)
            await self._one_by_one(batch)
        if self._open is None and not self._outbox.pending:
            self.idle.set()

    async def _until_due(self) -> None:
        while not self._due():
            if self._open is None and not self._outbox.pending:
                self.idle.set()
            # Runs just started may end within this turn; a read of the bells would be for nothing.
            await asyncio.sleep(0)
            if not self._wake.is_up:
                self._listen()
            await self._wake.wait()

    def _listen(self) -> None:
        if self._gate.free:
            self._bells.listen(self._gate.classes)
        else:
            self._bells.hush()

    def _due(self) -> bool:
        if self._outbox.pending or self._open is not None:
            return True
        return self._gate.free > 0 and (self._bells.rung or self._more)

    def _most(self) -> int:
        """Ends a call: of few slots half, so that Redis works on one half and we on the other."""
        return min(HEAVY_ITEMS_PER_CALL, max(1, (self._gate.slots + 1) // 2))

    def _room(self, ends: int, most: int) -> int:
        """Grants beside so many ends; one end leaves room for others in the same call."""
        if ends == most:
            return most
        return HEAVY_ITEMS_PER_CALL - (1 if ends == 1 else 0)

    def _next_take(self, most: int) -> Take | None:
        free = min(self._gate.free, most)
        if free <= 0:
            return None
        self._call += 1
        self._bells.obeyed()
        classes = dict.fromkeys(self._gate.classes, free)
        return Take(self._gate.worker, self._call, self._gate.slots, free, classes)

    async def _send(self, batch: list[tuple[Run, Ending]], take: Take | None) -> None:
        endings = [ending for _, ending in batch]
        if take is None:
            if batch:
                words = await self._finish(endings)
                self._outbox.ended(batch, words)
            return
        if batch:
            words, taken = await self._link.until_answered(
                "finish_take", lambda: self._leases.finish_take(endings, take)
            )
            self._outbox.ended(batch, words)
        else:
            taken = await self._link.until_answered("take", lambda: self._leases.take(take))
        self._taken(take, taken)

    async def _finish(self, endings: list[Ending]) -> list[str]:
        return await self._link.until_answered(
            "finish", lambda: self._leases.finish(self._gate.worker, endings)
        )

    async def _one_by_one(self, batch: list[tuple[Run, Ending]]) -> None:
        """One of these was refused as such: the others must not stay behind it."""
        for item in batch:
            try:
                words = await self._finish([item[1]])
            except ResponseError as error:
                failure("finish refused", error, id=item[1].request_id)
                self._outbox.give_up([item])
            else:
                self._outbox.ended([item], words)

    async def _release(self) -> None:
        while batch := self._outbox.releases():
            call = partial(
                self._leases.release, self._gate.worker, [release for _, release in batch]
            )
            self._outbox.released(batch, await self._link.until_answered("release", call))

    def _taken(self, take: Take, taken: Taken) -> None:
        self._open = None
        self._more = bool(taken.grants) and sum(taken.backlog.values()) > 0
        for grant in taken.grants:
            self.start(grant)
            labels = {"class": grant.class_name}
            self._metrics.observe("forebay_queued_seconds", grant.waited_ms / 1000, **labels)
        for class_name, count in Counter(one.class_name for one in taken.grants).items():
            self._metrics.count("forebay_taken_total", count, **{"class": class_name})
