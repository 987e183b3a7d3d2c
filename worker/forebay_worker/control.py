"""Orders for this worker, read from its control list as they come.

cancel <request id> <call>   the request has ended: stop the engine call under that lease
drain                        finish what runs, and leave
"""

from __future__ import annotations

import logging
from typing import Any, cast

from redis.asyncio import Redis

from forebay_shared.keys import Keys
from forebay_shared.logs import event
from forebay_worker.drain import Drain
from forebay_worker.link import Link
from forebay_worker.runs import Runs, Stop

BLOCK_S = 10.0


class Control:
    """Reads orders on a connection of its own, blocked in Redis until one comes."""

    def __init__(
        self, redis: Redis, keys: Keys, worker: str, runs: Runs, drain: Drain, link: Link
    ) -> None:
        self._redis = redis
        self._list = keys.control(worker)
        self._runs = runs
        self._drain = drain
        self._link = link

    async def once(self) -> None:
        """Wait for one order, at most 10 s, and obey it."""
        row: tuple[bytes, bytes] | None
        row = await cast(Any, self._redis.blpop([self._list], timeout=BLOCK_S))
        self._link.answered()
        if row is not None:
            self.obey(row[1].decode("utf-8", "replace"))

    def obey(self, order: str) -> None:
        """Carry out one order. One that this version does not know is left, and logged."""
        match order.split():
            case ["cancel", request_id, call] if call.isdecimal():
                run = self._runs.find(request_id, int(call))
                if run is not None:
                    run.stop(Stop.LOST)
            case ["drain"]:
                self._drain.request("order")
            case _:
                event("order not understood", logging.WARNING, order=order[:100])
