"""A pool on a real server, and what a test does with it: submit, wait, look, run workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from forebay_shared.calls import Admission, Admitted, Intake, Leases, Library, Seen
from forebay_shared.calls.requests import UNKNOWN
from forebay_shared.connect import connect
from forebay_shared.ids import new_request_id
from forebay_shared.records import TERMINAL, Envelope, Result
from forebay_shared.settings import PoolSettings
from forebay_worker.engine import Engine
from forebay_worker.options import WorkOptions
from forebay_worker.worker import Worker

CHAT = "/v1/chat/completions"
FAST = PoolSettings(
    lease_ms=900, renew_ms=300, sweep_ms=100, reclaim_ms=200, worker_ttl_ms=1_000, backoff_ms=20
)
"""Leases and sweeps short enough for tests to see them end."""


class Desk:
    """One pool, its workers in this process, and an inbox that tells of news."""

    def __init__(self, url: str, settings: PoolSettings = FAST) -> None:
        self.url = url
        self.settings = settings
        self.redis: Redis = connect(url)
        self.library = Library(self.redis, "default", settings)
        self.intake = Intake(self.library)
        self.leases = Leases(self.library)
        self.keys = self.library.keys
        self._inbox = "desk.1"
        self._workers: list[tuple[Worker, asyncio.Task[int]]] = []

    async def open(self) -> None:
        await self.library.start()
        await self.redis.xadd(self.keys.inbox(self._inbox), {"id": ""})

    async def close(self) -> None:
        """Hurry the workers that still serve out, and let go."""
        for worker, _ in self._workers:
            worker.drain.request("test is over")
            worker.drain.request("test is over")
        await asyncio.gather(*(task for _, task in self._workers))
        await self.redis.aclose()

    async def worker(
        self, engine: Engine, *, serving: bool = True, **options: Any
    ) -> tuple[Worker, asyncio.Task[int]]:
        """Start a worker in this process; returns when it serves."""
        given: dict[str, Any] = {
            "redis": self.url, "slots": 4, "grace_s": 5.0, "recheck_s": 0.05
        }  # fmt: skip
        worker = Worker(WorkOptions(**given | options), engine, self.settings)
        task = asyncio.create_task(worker.serve())
        self._workers.append((worker, task))
        if serving:
            await worker.serving.wait()
        return worker, task

    async def kill(self, worker: Worker) -> None:
        """End a worker as a crash would: it writes nothing more, its leases run out."""
        for other, task in self._workers:
            if other is worker:
                task.cancel()
                await asyncio.wait([task])
        self._workers = [pair for pair in self._workers if pair[0] is not worker]

    @staticmethod
    def stop_renewing(worker: Worker) -> None:
        """Let the worker's leases run out under it; it may renew by hand (`keeper.renew`)."""
        (renewing,) = (task for task in worker.duties_running if task.get_name() == "renew")
        renewing.cancel()

    async def submit(
        self,
        *,
        stream: bool = False,
        timeout_ms: int = 60_000,
        class_name: str = "normal",
        body: dict[str, Any] | None = None,
    ) -> str:
        """Admit one request; its id."""
        content = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        if stream:
            content["stream"] = True
        raw = json.dumps(content | (body or {})).encode()
        envelope = Envelope(CHAT, "m", raw, stream=stream)
        return (await self.admit([envelope], class_name, timeout_ms))[0]

    async def admit(
        self, envelopes: Sequence[Envelope], class_name: str = "normal", timeout_ms: int = 60_000
    ) -> list[str]:
        """Admit up to 100 envelopes in one call; their ids."""
        rows = [
            Admission(new_request_id("default"), class_name, "t", one, timeout_ms)
            for one in envelopes
        ]
        admitted = await self.intake.admit(rows, self._inbox)
        assert all(isinstance(one, Admitted) for one in admitted), admitted
        return [row.request_id for row in rows]

    async def seen(self, request_id: str, offset: int = 0) -> Seen:
        """State, result and chunks after `offset`, at most about 1 MiB of them."""
        return (await self.intake.reply(self._inbox, [(request_id, offset)]))[0]

    async def state(self, request_id: str) -> str:
        return (await self.seen(request_id, UNKNOWN)).state

    async def until(self, request_id: str, *states: str) -> Seen:
        """Wait until the request is in one of these states, told by its news."""
        last = "0"
        while True:
            seen = await self.seen(request_id, UNKNOWN)
            if seen.state in states:
                return seen
            assert seen.state not in TERMINAL, (seen.state, seen.result[:300])
            last = await self._news(last)

    async def until_chunks(self, request_id: str, count: int) -> Seen:
        """Wait until the request has so many chunks."""
        last = "0"
        while True:
            seen = await self.seen(request_id)
            if len(seen.chunks) >= count:
                return seen
            last = await self._news(last)

    async def _news(self, last: str) -> str:
        """Wait for an entry after `last`, at most a second: leases that end tell nobody."""
        key = self.keys.inbox(self._inbox)
        rows = await self.redis.xread({key: last}, block=1_000)
        return rows[0][1][-1][0].decode() if rows else last

    async def result(self, request_id: str) -> Result:
        """Wait for the request's end; its result."""
        return Result.decode((await self.until(request_id, *TERMINAL)).result)

    async def show(self, request_id: str) -> Any:
        return await self.intake.show(request_id)
