"""Redis stopped, restarted, silent or full: honest 503s, and service again soon after."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from tests.producer.running import BODY, CHAT, QUICK, Running, serving, until
from tests.producer.scripted import working
from tests.producer.scripts import RAW, answer, gated
from tests.servers import Server, start_server

pytestmark = pytest.mark.anyio
BRIEF = replace(QUICK, block_s=1)
SOON = replace(QUICK, floor_s=0.2)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own, which keeps its data over a restart."""
    running = start_server(tmp_path, extra=("--appendonly", "yes", "--appendfsync", "always"))
    yield running
    running.resume()
    running.stop()


def assert_away(reply: httpx.Response) -> None:
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "redis_unavailable")
    assert 1 <= int(reply.headers["retry-after"]) <= 5


async def served_again(one: Running, within_s: float = 5) -> None:
    async with asyncio.timeout(within_s):
        while (reply := await one.http.post(CHAT, json=BODY)).status_code != 200:
            assert_away(reply)


async def test_a_producer_starts_before_redis_and_serves_when_it_comes(own: Server) -> None:
    own.kill()
    async with serving(own.url, wait_ready=False, timings=BRIEF) as one:
        assert_away(await one.http.post(CHAT, json=BODY))
        # Whether this one exists nobody can tell yet: not a 404.
        path = "/v1/requests/default.01ARZ3NDEKTSV4RRFFQ69G5FAV"
        for known in (path, f"{path}/events"):
            assert_away(await one.http.get(known))
        assert_away(await one.http.delete(path))
        assert (await one.http.get("/healthz")).status_code == 200
        assert (await one.http.get("/readyz")).status_code == 503
        own.restart()
        await one.ready()
        async with working(own.url, answer):
            assert (await one.http.post(CHAT, json=BODY)).content == RAW


async def test_away_is_503_and_service_returns_within_5_s(own: Server) -> None:
    async with serving(own.url, timings=BRIEF) as one, working(own.url, answer):
        for _ in range(3):
            own.kill()
            assert_away(await one.http.post(CHAT, json=BODY))
            assert_away(await one.http.get("/v1/requests/default.01ARZ3NDEKTSV4RRFFQ69G5FAV"))
            own.restart()
            await served_again(one)
        await until(one.producer.replica.is_ready)


async def test_a_waiter_gets_its_answer_over_a_restart(own: Server) -> None:
    gate = asyncio.Event()
    async with (
        serving(own.url, timings=BRIEF) as one,
        working(own.url, gated(gate)) as worker,
    ):
        asking = asyncio.create_task(one.http.post(CHAT, json=BODY))
        await worker.wait_granted()
        own.kill()
        await asyncio.sleep(0.3)
        own.restart()
        gate.set()
        async with asyncio.timeout(5):
            assert (await asking).content == RAW


async def test_readiness_and_metrics_tell_of_a_lost_redis(own: Server) -> None:
    async with serving(own.url, timings=BRIEF) as one:
        own.kill()
        await until(lambda: not one.producer.replica.is_redis_up())
        ready = await one.http.get("/readyz")
        metrics = (await one.http.get("/metrics")).text
    assert (ready.status_code, ready.json()) == (503, {"status": "redis is away"})
    assert "forebay_redis_up 0.0" in metrics


async def test_a_redis_that_takes_no_writes_is_as_good_as_away(own: Server) -> None:
    """It answers reads, as a replica does: nothing can be admitted, so nothing should come here."""
    async with serving(own.url) as one:
        with redis.Redis.from_url(own.url) as client:
            client.replicaof("127.0.0.1", "1")
            assert_away(await one.http.post(CHAT, json=BODY))
            await until(lambda: not one.producer.replica.is_redis_up())
            metrics = (await one.http.get("/metrics")).text
            client.replicaof("NO", "ONE")
        assert "forebay_redis_up 0.0" in metrics
        await one.ready()


async def test_a_record_that_vanished_is_503_for_its_waiter(redis_url: str) -> None:
    async with serving(redis_url, timings=SOON) as one:
        asking = asyncio.create_task(one.http.post(CHAT, json=BODY))
        inbox = one.producer.replica.pools["default"].inbox
        await until(lambda: any(reader.armed for reader in inbox.readers()))
        with redis.Redis.from_url(redis_url) as client:
            client.flushall()
        async with asyncio.timeout(3):
            assert_away(await asking)


async def test_after_a_flush_the_pool_is_founded_again(redis_url: str) -> None:
    async with serving(redis_url) as one:
        with redis.Redis.from_url(redis_url) as client:
            client.flushall()
            client.function_flush()
        async with working(redis_url, answer):
            await served_again(one)


async def test_lost_news_costs_a_moment_and_no_answer(redis_url: str) -> None:
    """The inbox vanishes while somebody waits: the floor asks, and a new inbox is made."""
    gate = asyncio.Event()
    async with serving(redis_url, timings=SOON) as one, working(redis_url, gated(gate)) as worker:
        asking = asyncio.create_task(one.http.post(CHAT, json=BODY))
        await worker.wait_granted()
        with redis.Redis.from_url(redis_url) as client:
            assert client.delete(*client.keys("*:inbox:*")) == 1
        gate.set()
        async with asyncio.timeout(2):
            assert (await asking).status_code == 200


@pytest.mark.parametrize("how", ["renewal", "lost connection"])
async def test_who_waits_is_asked_for_when_a_new_inbox_is_made(redis_url: str, how: str) -> None:
    """Not only by the floor, which is far off here."""
    far = replace(QUICK, floor_s=30)
    if how == "renewal":
        far = replace(far, inbox_ttl_s=3, inbox_renew_s=0.5, block_s=0.2)
    gate = asyncio.Event()
    async with (
        serving(redis_url, timings=far) as one,
        working(redis_url, gated(gate)) as worker,
    ):
        asking = asyncio.create_task(one.http.post(CHAT, json=BODY))
        await worker.wait_granted()
        with redis.Redis.from_url(redis_url) as client:
            client.delete(*client.keys("*:inbox:*"))
            gate.set()
            if how == "lost connection":
                client.client_kill_filter(_type="normal", skipme=True)
        async with asyncio.timeout(4):
            assert (await asking).status_code == 200


async def test_a_renewal_that_finds_no_inbox_makes_a_new_one(redis_url: str) -> None:
    quick = replace(QUICK, inbox_ttl_s=3, inbox_renew_s=0.5, block_s=0.2)
    async with serving(redis_url, timings=quick) as one:
        inbox = one.producer.replica.pools["default"].inbox
        before = inbox.name
        with redis.Redis.from_url(redis_url) as client:
            client.delete(*client.keys("*:inbox:*"))
            await until(lambda: inbox.name != before)
            assert 0 < client.ttl(client.keys("*:inbox:*")[0]) <= 3


async def test_a_nearly_full_redis_takes_nothing_new_but_ends_what_runs(own: Server) -> None:
    gate = asyncio.Event()
    async with serving(own.url) as one, working(own.url, gated(gate)) as worker:
        asking = asyncio.create_task(one.http.post(CHAT, json=BODY))
        await worker.wait_granted()
        with redis.Redis.from_url(own.url) as client:
            used = client.info("memory")["used_memory"]
            client.config_set("maxmemory", int(used / 0.9))
            await until(lambda: one.producer.replica.is_full())
            assert_away(await one.http.post(CHAT, json=BODY))
            gate.set()
            assert (await asking).status_code == 200
            client.config_set("maxmemory", 100 * used)
            await until(lambda: not one.producer.replica.is_full())
        assert (await one.http.post(CHAT, json=BODY)).status_code == 200


async def test_at_maxmemory_admits_are_refused_as_503(own: Server) -> None:
    """Where memory fills within the second between two looks, Redis itself refuses."""
    async with serving(own.url, timings=replace(QUICK, refresh_s=60)) as one:
        with redis.Redis.from_url(own.url) as client:
            client.config_set("maxmemory", 1)
            assert_away(await one.http.post(CHAT, json=BODY))
            client.config_set("maxmemory", 0)


async def test_a_silent_redis_does_not_stop_health(own: Server) -> None:
    async with serving(own.url, timings=BRIEF) as one:
        own.pause()
        async with asyncio.timeout(1):
            assert (await one.http.get("/healthz")).status_code == 200
        async with asyncio.timeout(3):
            assert (await one.http.get("/metrics")).status_code == 200
        await until(lambda: not one.producer.replica.is_redis_up(), 10)
        own.resume()
        await one.ready()


def test_the_fixture_keeps_data(own: Server) -> None:
    """What the tests above rest on."""
    with redis.Redis.from_url(own.url) as client:
        client.set("a", "b")
    own.kill()
    own.restart()
    with redis.Redis.from_url(own.url) as client:
        value: Any = client.get("a")
    assert value == b"b"
