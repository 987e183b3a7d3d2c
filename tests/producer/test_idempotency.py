"""Idempotency-Key: one execution however often it is asked for, and clear answers otherwise."""

from __future__ import annotations

import asyncio

import pytest
import redis
from tests.producer.running import BODY, CHAT, serving
from tests.producer.scripted import working
from tests.producer.scripts import RAW, answer, chunk, gated, stay

pytestmark = pytest.mark.anyio
KEY = {"idempotency-key": "key-1"}
STREAM = {**BODY, "stream": True}


async def test_ten_at_once_over_two_replicas_run_once(redis_url: str) -> None:
    gate = asyncio.Event()
    async with (
        serving(redis_url) as a,
        serving(redis_url) as b,
        working(redis_url, gated(gate)) as worker,
    ):
        asks = [
            asyncio.create_task((a, b)[n % 2].http.post(CHAT, json=BODY, headers=KEY))
            for n in range(10)
        ]
        await worker.wait_granted()
        gate.set()
        replies = await asyncio.gather(*asks)
    assert len(worker.granted) == 1
    assert {(reply.status_code, reply.content) for reply in replies} == {(200, RAW)}
    assert {reply.headers["x-request-id"] for reply in replies} == {worker.granted[0].request_id}


async def test_a_repeat_after_the_end_gets_the_same_answer(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer) as worker:
        first = await one.http.post(CHAT, json=BODY, headers=KEY)
        again = await one.http.post(CHAT, json=BODY, headers=KEY)
        accepted = await one.http.post(CHAT, json=BODY, headers={**KEY, "prefer": "respond-async"})
    assert len(worker.granted) == 1
    assert again.content == first.content
    assert accepted.json()["state"] == "done"
    assert accepted.json()["id"] == first.headers["x-request-id"]


async def test_a_repeated_stream_is_read_from_its_beginning(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer) as worker:
        first = await one.http.post(CHAT, json=STREAM, headers=KEY)
        again = await one.http.post(CHAT, json=STREAM, headers=KEY)
    assert len(worker.granted) == 1
    assert again.content == first.content
    assert chunk("Hel") in first.content


async def test_another_body_under_the_same_key_is_422(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer) as worker:
        await one.http.post(CHAT, json=BODY, headers=KEY)
        other = await one.http.post(CHAT, json={**BODY, "seed": 1}, headers=KEY)
    assert other.status_code == 422
    assert other.json()["error"]["code"] == "idempotency_mismatch"
    assert len(worker.granted) == 1


async def test_a_key_outlives_its_result_and_then_says_gone(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer) as worker:
        first = await one.http.post(CHAT, json=BODY, headers=KEY)
        with redis.Redis.from_url(redis_url) as client:
            client.delete(*client.keys("*:result:*"))
        again = await one.http.post(CHAT, json=BODY, headers=KEY)
    assert again.status_code == 410
    assert first.headers["x-request-id"] in again.json()["error"]["message"]
    assert len(worker.granted) == 1


async def test_after_a_cancel_the_key_runs_anew(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, stay) as worker:
        accepted = await one.http.post(CHAT, json=BODY, headers={**KEY, "prefer": "respond-async"})
        await worker.wait_granted()
        await one.http.delete(accepted.headers["location"])
        worker.script = answer
        assert (await one.http.post(CHAT, json=BODY, headers=KEY)).content == RAW
    assert len(worker.granted) == 2
