"""Admits whose answer is lost: taken back, whenever they come, or found again by their key."""

from __future__ import annotations

from typing import Any

import pytest
from tests.producer.proxy import Fate, Proxy, proxy
from tests.producer.running import BODY, CHAT, Running, serving
from tests.producer.scripted import working
from tests.producer.scripts import answer

pytestmark = pytest.mark.anyio
FATES = [Fate.UNANSWERED, Fate.HELD]
KEY = {"idempotency-key": "k"}


async def counts(one: Running) -> tuple[int, int, int]:
    """Accepted, cancelled and queued requests of the pool."""
    status: Any = await one.producer.replica.pools["default"].operator.status()
    queued = sum(row["queued"] for row in status["classes"])
    return status["ledger"]["accepted"], status["ledger"].get("cancelled", 0), queued


async def ask_in_doubt(one: Running, between: Proxy, fate: Fate, **headers: str) -> None:
    """A request whose admit has this fate; returns when all that follows from it is done."""
    between.fate = fate
    reply = await one.http.post(CHAT, json=BODY, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "redis_unavailable")
    assert between.met == 2  # repeated once, being idempotent
    between.fate = Fate.PASS
    await one.producer.replica.finish_cancellations()
    await between.release()


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("headers", [{}, {"prefer": "respond-async"}], ids=["sync", "async"])
async def test_without_a_key_it_is_taken_back(
    redis_url: str, fate: Fate, headers: dict[str, str]
) -> None:
    """Told 503, the client sends it anew: what was stored under the old id runs for nobody."""
    async with proxy(redis_url) as between, serving(between.url) as one:
        await ask_in_doubt(one, between, fate, **headers)
        stored = fate is Fate.UNANSWERED
        assert await counts(one) == ((1, 1, 0) if stored else (0, 0, 0))


@pytest.mark.parametrize("fate", FATES)
async def test_with_a_key_it_stays_and_the_repeat_finds_it(redis_url: str, fate: Fate) -> None:
    async with proxy(redis_url) as between, serving(between.url) as one:
        await ask_in_doubt(one, between, fate, **KEY)
        assert await counts(one) == (1, 0, 1)
        async with working(redis_url, answer):
            reply = await one.http.post(CHAT, json=BODY, headers=KEY)
        assert reply.status_code == 200
        assert await counts(one) == (1, 0, 0)


async def test_what_redis_has_no_room_for_is_not_in_doubt(redis_url: str) -> None:
    """Refused whole; to take it back would only cost more room."""
    async with serving(redis_url) as one:
        pool = one.producer.replica.pools["default"]
        await pool.redis.config_set("maxmemory", 1)
        try:
            assert (await one.http.post(CHAT, json=BODY)).status_code == 503
        finally:
            await pool.redis.config_set("maxmemory", 0)
        assert len(pool.canceller) == 0
        assert await pool.redis.keys("*:request:*") == []
