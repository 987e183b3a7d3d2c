"""Admits that come together go to Redis together; one that comes alone waits for nobody."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from forebay_producer.inbox import Inbox
from forebay_shared.calls import Admission, Admitted, Intake, Refusal
from forebay_shared.calls.library import HEAVY_ITEMS_PER_CALL, HEAVY_ITEMS_TOGETHER, batched
from forebay_shared.connect import redis_away, redis_full
from forebay_shared.metrics import Metrics

_BYTES_TOGETHER = 1024 * 1024
"""Most payload sent at once: Redis serves nobody else meanwhile."""

_Waiting = tuple[Admission, "asyncio.Future[Admitted | Refusal]"]


class Admitter:
    """Coalesces the admits of one pool: while some are out, the next ones gather."""

    def __init__(self, intake: Intake, inbox: Inbox, metrics: Metrics) -> None:
        self._intake = intake
        self._inbox = inbox
        self._metrics = metrics
        self._waiting: deque[_Waiting] = deque()
        self._flushing: asyncio.Task[None] | None = None

    async def admit(self, admission: Admission) -> Admitted | Refusal:
        """Store one request. Raises what Redis raises; it may be stored even so."""
        answer: asyncio.Future[Admitted | Refusal] = asyncio.get_running_loop().create_future()
        self._waiting.append((admission, answer))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return await answer

    async def _flush(self) -> None:
        try:
            while self._waiting:
                await self._send(batched(self._batch(), HEAVY_ITEMS_PER_CALL))
        finally:
            self._flushing = None

    def _batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        total = 0
        while self._waiting and len(batch) < HEAVY_ITEMS_TOGETHER:
            total += len(self._waiting[0][0].envelope.body)
            if batch and total > _BYTES_TOGETHER:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _send(self, pages: Sequence[Sequence[_Waiting]]) -> None:
        """A call for each page, all sent at once."""
        try:
            replies = await self._admit([[admission for admission, _ in page] for page in pages])
        except Exception as error:  # noqa: BLE001 - each waiter gets it
            for page in pages:
                await self._failed(page, error)
            return
        refused: list[tuple[Sequence[_Waiting], ResponseError]] = []
        for page, reply in zip(pages, replies, strict=True):
            if isinstance(reply, ResponseError):
                refused.append((page, reply))
                continue
            for (_, future), answer in zip(page, reply, strict=True):
                if not future.done():
                    future.set_result(answer)
        for page, refusal in refused:  # which may take long: after all who have an answer
            await self._failed(page, refusal)

    async def _admit(
        self, pages: Sequence[Sequence[Admission]]
    ) -> list[list[Admitted | Refusal] | ResponseError]:
        self._metrics.count("forebay_redis_calls_total", step="admit")
        try:
            return await self._intake.admit_together(pages, self._inbox.name)
        except RedisConnectionError:
            # A connection that died while idle. Idempotent by request id, so once more.
            return await self._intake.admit_together(pages, self._inbox.name)

    async def _failed(self, page: Sequence[_Waiting], error: Exception) -> None:
        judged = isinstance(error, ResponseError) and not (redis_away(error) or redis_full(error))
        if judged and len(page) > 1:
            # One of them was refused as malformed; the others shall not suffer for it.
            for one in page:
                await self._send([[one]])
            return
        for _, future in page:
            if not future.done():
                future.set_exception(error)
