"""Clients that submit one request after the other, and what became of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import aiohttp
from redis.exceptions import RedisError
from tests.flow.processes import until
from tests.flow.system import System

PAUSE_S = 0.1
"""After an answer: they shall meet an outage, not fill the queue."""


def body_of(text: str, tokens: int = 8, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    return {"model": "sim", "messages": [message], "max_tokens": tokens, **fields}


class Load:
    """Half of the clients wait for their answers, half come back for them later.

    `accepted`: ids of what was accepted to be done later. `answered_s`: when a request that began
    after `since_s` was first answered with its result.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self.accepted: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.since_s = float("inf")
        self.answered_s: float | None = None

    @asynccontextmanager
    async def running(self, clients: int = 8) -> AsyncIterator[None]:
        """Submit as long as the block lasts; those under way are finished."""
        stop = asyncio.Event()
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(self._client(session, number, stop))
            try:
                yield
            finally:
                stop.set()

    async def _client(self, session: aiohttp.ClientSession, number: int, stop: Any) -> None:
        headers = {"Prefer": "respond-async"} if number % 2 else {"X-Priority": "high"}
        url = self._system.producers[number // 2 % len(self._system.producers)]
        count = 0
        while not stop.is_set():
            count += 1
            began_s = monotonic()
            body = body_of(f"client {number}, request {count}")
            async with session.post(
                f"{url}/v1/chat/completions", json=body, headers=headers
            ) as answer:
                self._note(answer, began_s, await answer.text())
            await asyncio.sleep(PAUSE_S)

    def _note(self, answer: aiohttp.ClientResponse, began_s: float, text: str) -> None:
        self.statuses[answer.status] += 1
        assert answer.status in (200, 202, 503), text
        if answer.status == 503:
            assert int(answer.headers["retry-after"]) >= 1, text
        elif answer.status == 202:
            self.accepted.append(answer.headers["Location"].rpartition("/")[2])
        elif began_s >= self.since_s and self.answered_s is None:
            self.answered_s = monotonic()

    async def until_accepted(self, count: int) -> None:
        """Return when so many more requests were accepted."""
        wanted = len(self.accepted) + count

        async def holds() -> bool:
            return len(self.accepted) >= wanted

        await until(holds, 30, f"{count} more are accepted: {self.statuses}")

    async def until_answered(self) -> float:
        """Seconds until a request that begins from now on is answered with its result."""
        self.since_s, self.answered_s = monotonic(), None

        async def holds() -> bool:
            return self.answered_s is not None

        return await until(holds, 30, f"a request is answered: {self.statuses}")

    async def until_all_done(self) -> None:
        """Return when all that was accepted is done; nothing is lost, nothing ends otherwise."""
        states: Counter[str] = Counter()

        async def holds() -> bool:
            states.clear()
            try:
                for request_id in self.accepted:
                    shown = await self._system.intake.show(request_id)
                    states[shown.state if shown else "lost"] += 1
            except RedisError:
                return False  # this process has not noticed yet that its server hangs
            return states["done"] == len(self.accepted)

        await until(holds, 30, f"all {len(self.accepted)} are done: {states}", every_s=0.2)
