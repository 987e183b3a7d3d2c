"""Probes, metrics and the admin listener."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from pathlib import Path

import httpx
import pytest
from tests.producer.running import BODY, CHAT, QUICK, serving, until
from tests.producer.scripted import working
from tests.producer.scripts import answer

from forebay_producer.listen import CannotServe, bind_uds
from forebay_producer.options import ServeOptions
from forebay_producer.serve import Producer
from forebay_shared.metrics import TABLE

pytestmark = pytest.mark.anyio


async def test_probes_and_metrics_are_on_the_main_address_by_default(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer):
        await one.http.post(CHAT, json=BODY)
        await one.http.post(CHAT, json={**BODY, "stream": True})
        await one.http.post(CHAT, content=b"no")
        assert (await one.http.get("/healthz")).json() == {"status": "ok"}
        assert (await one.http.get("/readyz")).json() == {"status": "ready"}
        text = (await one.http.get("/metrics")).text
    for line in (
        'forebay_admitted_total{class="normal"} 2.0',
        'forebay_replied_total{class="normal",state="done"} 2.0',
        'forebay_first_event_seconds_count{class="normal"} 1.0',
        'forebay_refused_total{reason="invalid_request_error"} 1.0',
        "forebay_redis_up 1.0",
        "forebay_waiters 0.0",
        'forebay_pool_queued{class="normal"} 0.0',
    ):
        assert line in text.splitlines()


async def test_metrics_say_nothing_of_who_asked_for_what(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer, models=("secret-model",)):
        body = {"model": "secret-model", "messages": [{"role": "user", "content": "secret"}]}
        await one.http.post(CHAT, json=body, headers={"x-priority": "low"})
        await one.http.get("/v1/secret-path")
        text = (await one.http.get("/metrics")).text
    assert "secret" not in text
    names = {one.name.removesuffix("_total") for one in TABLE}
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} <= names | {
        f"{name}{end}" for name in names for end in ("_total", "_created")
    }


async def test_settings_that_cannot_be_read_leave_the_old_ones(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a newer version, or written by hand: told once, and the replica serves on."""
    async with serving(redis_url) as one, working(redis_url, answer):
        pool = one.producer.replica.pools["default"]
        (key,) = await pool.redis.keys("*:settings")
        stored = json.loads(str(await pool.redis.hget(key, "json"), "ascii"))
        await pool.redis.hset(key, "json", json.dumps({**stored, "lease_ms": 500}))
        for _ in range(3):
            await one.producer.replica.refresh()
        assert pool.settings.lease_ms == 15_000
        async with serving(redis_url) as fresh:
            for each in (one, fresh):
                assert (await each.http.get("/readyz")).status_code == 200
                assert (await each.http.post(CHAT, json=BODY)).status_code == 200
        told = [row for row in caplog.records if row.message == "settings_refused"]
        assert len(told) == 2  # by each replica
        await pool.redis.hset(key, "json", json.dumps({**stored, "lease_ms": 16_000}))
        await one.producer.replica.refresh()
        assert pool.settings.lease_ms == 16_000


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_an_admin_listener_takes_the_metrics(redis_url: str) -> None:
    admin = f"127.0.0.1:{free_port()}"
    async with serving(redis_url, admin=admin) as one, httpx.AsyncClient() as http:
        assert (await http.get(f"http://{admin}/metrics")).status_code == 200
        assert (await http.get(f"http://{admin}/readyz")).status_code == 200
        assert (await http.get(f"http://{admin}/v1/models")).status_code == 404
        assert (await one.http.get("/metrics")).status_code == 404
        assert (await one.http.get("/readyz")).status_code == 200


async def test_it_listens_on_a_unix_socket(redis_url: str, tmp_path: Path) -> None:
    path = Path(f"/tmp/fb-{tmp_path.name[:40]}.sock")
    async with (
        serving(redis_url, uds=path, wait_ready=False) as one,
        httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as http,
    ):
        assert one.url == f"unix:{path}"
        assert (await http.get("http://x/healthz")).status_code == 200
        assert mode_of(path) == 0o660
        with pytest.raises(CannotServe, match="in use"):
            bind_uds(path)
    assert mode_of(path) is None


def mode_of(path: Path) -> int | None:
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else None


def test_a_socket_that_was_left_behind_gives_way(tmp_path: Path) -> None:
    path = Path(f"/tmp/fb-{tmp_path.name[:40]}.sock")
    bind_uds(path).close()
    assert path.is_socket()
    with bind_uds(path):
        assert mode_of(path) == 0o660
    path.unlink()


async def test_named_pools_are_served_alone(redis_url: str) -> None:
    producer = Producer(ServeOptions(redis_url, port=0, pools=("a", "b"), timings=QUICK))
    url = await producer.start()
    try:
        await until(producer.replica.is_ready)
        assert set(producer.replica.pools) == {"a", "b"}
        async with httpx.AsyncClient(base_url=url) as http:
            # Two pools, and no word of who serves the model.
            assert (await http.post(CHAT, json=BODY)).status_code == 404
    finally:
        hurry = asyncio.Event()
        hurry.set()
        await producer.drain(hurry)
