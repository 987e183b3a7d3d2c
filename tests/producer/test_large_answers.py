"""Answers of which one reply holds one: everybody gets theirs, and Redis stays free."""

from __future__ import annotations

import asyncio

import pytest
import redis
from tests.producer.running import BODY, CHAT, serving
from tests.producer.scripted import USAGE, ScriptedWorker, working
from tests.producer.scripts import DONE, gated

from forebay_shared.calls import Grant
from forebay_shared.records import Result

pytestmark = pytest.mark.anyio
SIZE = 1024 * 1024
SLOW_US = 20_000


@pytest.mark.parametrize(("stream", "count"), [(False, 100), (True, 20)])
async def test_all_get_theirs_and_no_reply_is_long(
    redis_url: str, stream: bool, count: int
) -> None:
    async def large(worker: ScriptedWorker, grant: Grant) -> None:
        body = grant.request_id.encode() + b"x" * SIZE
        if stream:
            await worker.finish(grant, DONE, 0, body[:SIZE], body[SIZE:])
        else:
            await worker.finish(grant, Result("done", 200, usage=USAGE, body=body))

    gate = asyncio.Event()
    async with serving(redis_url) as one, working(redis_url, gated(gate, large)) as worker:

        async def ask() -> bool:
            reply = await one.http.post(CHAT, json={**BODY, "stream": stream}, timeout=30)
            head = reply.headers["x-request-id"].encode()
            return len(reply.content) > SIZE and head in reply.content[: len(head) + 6]

        asks = [asyncio.create_task(ask()) for _ in range(count)]
        await worker.wait_granted(count)
        with redis.Redis.from_url(redis_url) as spy:
            spy.config_set("slowlog-log-slower-than", SLOW_US)
            spy.slowlog_reset()
            gate.set()
            assert await asyncio.gather(*asks) == [True] * count
            slow = [row["command"] for row in spy.slowlog_get(128)]
    assert [command[:40] for command in slow if b"forebay_reply" in command] == []
