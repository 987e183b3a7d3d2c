"""A Redis that may evict is told loudly: by producers, by workers, and as a metric."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest
from redis.asyncio import Redis
from tests.flow.processes import Child, until
from tests.servers import start_server
from tests.vllm.rig import free_port

from forebay_shared.eviction import EvictionWatch
from forebay_shared.metrics import Metrics

pytestmark = pytest.mark.anyio


def told(child: Child) -> list[str]:
    """The policies that it has called an error."""
    rows = [json.loads(line) for line in child.log.read_text().splitlines() if line[:1] == "{"]
    errors = [row for row in rows if row["event"] == "redis_evicts" and row["level"] == "error"]
    return [row["policy"] for row in errors]


async def metric(url: str) -> str:
    """What a process tells of it; empty before it listens."""
    async with aiohttp.ClientSession() as client:
        try:
            async with client.get(f"{url}/metrics") as answer:
                page = await answer.text()
        except aiohttp.ClientError:
            return ""
    return next(line for line in page.splitlines() if line.startswith("forebay_redis_evicts "))


async def test_both_tell_at_their_start_and_the_metric_follows(tmp_path: Path) -> None:
    """1 and an error in the log, whether or not maxmemory is reached; 0 once it is mended."""
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with start_server(tmp_path, extra=("--maxmemory-policy", "volatile-lru")) as server:
        place = ["--redis", server.url]
        options = {"forebay_producer": "--port", "forebay_worker": "--admin"}
        where = [str(ports[0]), f"127.0.0.1:{ports[1]}"]
        children = [
            Child(module, [*place, option, at], tmp_path / f"{module}.log")
            for (module, option), at in zip(options.items(), where, strict=True)
        ]

        async def evicting() -> bool:
            return [await metric(url) for url in urls] == ["forebay_redis_evicts 1.0"] * 2

        async def mended() -> bool:
            return await metric(urls[0]) == "forebay_redis_evicts 0.0"

        try:
            await until(evicting, 20, "both tell")
            assert [told(child) for child in children] == [["volatile-lru"]] * 2
            async with Redis.from_url(server.url) as client:
                await client.config_set("maxmemory-policy", "noeviction")
            await until(mended, 5, "the producer tells")
        finally:
            for child in children:
                child.kill()


def test_each_turn_for_the_worse_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not at each look; a service that hides its policy is not suspected."""
    watch = EvictionWatch(Metrics())
    for policy in ("noeviction", "allkeys-lru", "allkeys-lru", "noeviction", "allkeys-lru"):
        watch.look({"maxmemory_policy": policy})
    watch.look({})
    assert [one.getMessage() for one in caplog.records] == ["redis_evicts"] * 2
