"""SIGTERM: no client notices while it can be helped, and the process ends on time."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from tests.producer.process import child
from tests.producer.running import BODY, CHAT, QUICK, serving, until
from tests.producer.scripted import ScriptedWorker, working
from tests.producer.scripts import DONE, RAW, answer, chunk, gated, stay
from tests.servers import start_server

from forebay_producer.command import serve
from forebay_producer.options import ServeOptions
from forebay_producer.serve import Producer, run
from forebay_shared.calls import Grant
from forebay_shared.records import Result

pytestmark = pytest.mark.anyio
STREAM = {**BODY, "stream": True}
QUICK_END = ("--port", "0", "--serve-on", "0.1", "--grace", "0.1")


async def test_a_draining_producer_serves_on_but_is_not_ready(redis_url: str) -> None:
    slow = replace(QUICK, serve_on_s=1)
    producer = Producer(ServeOptions(redis_url, port=0, timings=slow))
    url = await producer.start()
    await until(producer.replica.is_ready)
    async with working(redis_url, answer), httpx.AsyncClient(base_url=url) as http:
        draining = asyncio.create_task(producer.drain(asyncio.Event()))
        await until(lambda: producer.replica.draining)
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
        reply = await http.post(CHAT, json=BODY)
        assert reply.content == RAW
        assert reply.headers["connection"] == "close"
        await draining
        with pytest.raises(httpx.ConnectError):
            await http.get("/healthz")


async def test_open_answers_are_finished_within_the_grace(redis_url: str) -> None:
    gate = asyncio.Event()
    patient = replace(QUICK, grace_s=10)
    producer = Producer(ServeOptions(redis_url, port=0, timings=patient))
    url = await producer.start()
    await until(producer.replica.is_ready)
    async with working(redis_url, gated(gate)) as worker, httpx.AsyncClient(base_url=url) as http:
        asks = [asyncio.create_task(http.post(CHAT, json=body)) for body in (BODY, STREAM)]
        await worker.wait_granted(2)
        draining = asyncio.create_task(producer.drain(asyncio.Event()))
        await asyncio.sleep(0.5)
        assert not draining.done()
        gate.set()
        whole, stream = await asyncio.gather(*asks)
        async with asyncio.timeout(3):
            await draining
    assert whole.content == RAW
    assert stream.content.endswith(b"data: [DONE]\n\n")


async def test_after_the_grace_streams_end_with_an_error_event(redis_url: str) -> None:
    async def begin(worker: ScriptedWorker, grant: Grant) -> None:
        if json.loads(grant.head)["stream"]:
            await worker.emit(grant, 0, chunk("a"))

    producer = Producer(ServeOptions(redis_url, port=0, timings=QUICK))
    url = await producer.start()
    await until(producer.replica.is_ready)
    async with working(redis_url, begin) as worker, httpx.AsyncClient(base_url=url) as http:
        asks = [asyncio.create_task(http.post(CHAT, json=body)) for body in (BODY, STREAM)]
        await worker.wait_granted(2)
        async with asyncio.timeout(4):
            await producer.drain(asyncio.Event())
            whole, stream = await asyncio.gather(*asks)
        events = [line[6:] for line in stream.content.split(b"\n") if line.startswith(b"data: ")]
        assert events[0] == chunk("a")
        assert json.loads(events[1])["error"]["code"] == "stream_interrupted"
        assert len(events) == 2
        assert (whole.status_code, whole.headers.get("x-should-retry")) == (502, None)
        # SDKs repeat a 502: nobody comes back for that one, and its engine is told. A stream that
        # has begun is read on at another replica.
        (repeated,) = (one for one in worker.granted if not json.loads(one.head)["stream"])
        await worker.wait_order(f"cancel {repeated.request_id}", within_s=1)
        async with serving(redis_url) as other:
            (streamed,) = (one for one in worker.granted if json.loads(one.head)["stream"])
            await worker.finish(streamed, DONE, 1, chunk("b"))
            path = f"/v1/requests/{streamed.request_id}/events"
            read = await other.http.get(path, headers={"last-event-id": "1"})
    assert chunk("b") in read.content
    assert len(worker.orders) == 1


async def test_after_the_grace_the_next_replica_finds_a_request_by_its_key(redis_url: str) -> None:
    key = {"idempotency-key": "k"}
    async with serving(redis_url) as other, working(redis_url, stay) as worker:
        async with serving(redis_url) as one:
            asking = asyncio.create_task(one.http.post(CHAT, json=BODY, headers=key))
            (grant,) = await worker.wait_granted()
            await one.producer.drain(asyncio.Event())
            assert (await asking).status_code == 502
        again = asyncio.create_task(other.http.post(CHAT, json=BODY, headers=key))
        await until(lambda: other.producer.waiters() == 1)
        await worker.finish(grant, Result("done", 200, body=RAW))
        assert (await again).content == RAW
    assert worker.orders == []


async def test_sigterm_drains_and_exits_0(redis_url: str) -> None:
    async with child("--redis", redis_url, "--port", "0", "--serve-on", "1") as process:
        url = await process.address()
        async with working(redis_url, answer), httpx.AsyncClient(base_url=url) as http:
            await process.wait_event("pool_ready")
            assert (await http.post(CHAT, json=BODY)).status_code == 200
            process.child.send_signal(signal.SIGTERM)
            await process.wait_event("draining", within_s=1)
            assert (await http.post(CHAT, json=BODY)).status_code == 200
        assert await process.exit_code(within_s=8) == 0
    assert process.noise == []


async def test_a_second_signal_hurries(redis_url: str) -> None:
    async with child("--redis", redis_url, "--port", "0") as process:
        url = await process.address()
        async with working(redis_url, stay) as worker, httpx.AsyncClient(base_url=url) as http:
            await process.wait_event("pool_ready")
            asking = asyncio.create_task(http.post(CHAT, json=BODY, timeout=20))
            await worker.wait_granted()
            process.child.send_signal(signal.SIGTERM)
            await process.wait_event("draining")
            process.child.send_signal(signal.SIGTERM)
            assert await process.exit_code(within_s=4) == 0
            assert (await asking).status_code == 502


@pytest.mark.parametrize("redis_is", ["never up", "killed", "silent"])
async def test_it_exits_on_time_whatever_redis_does(tmp_path: Path, redis_is: str) -> None:
    server = start_server(tmp_path)
    try:
        if redis_is == "never up":
            server.kill()
        async with child("--redis", server.url, *QUICK_END) as process:
            await process.address()
            if redis_is == "killed":
                await process.wait_event("pool_ready")
                server.kill()
            elif redis_is == "silent":
                await process.wait_event("pool_ready")
                server.pause()
            started_s = time.monotonic()
            process.child.send_signal(signal.SIGTERM)
            assert await process.exit_code(within_s=15) == 0
            # 0.1 s of serving on, 0.1 s of grace, and little for the rest
            assert time.monotonic() - started_s < 5
    finally:
        server.resume()
        server.stop()


BAD_OPTIONS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"host": "0.0.0.0"}, "--insecure"),
    ({"admin": "nowhere"}, "HOST:PORT"),
    ({"host": "192.0.2.1", "insecure": True}, "192.0.2.1"),
    ({"redis_url": "http://x"}, "Redis URL"),
)


async def test_bad_options_exit_2_with_one_line(tmp_path: Path, redis_url: str) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("nonsense")
    async with child("--redis", redis_url, "--keys", str(keys)) as process:
        assert await process.exit_code() == 2
    assert process.events == []
    assert len(process.noise) == 1
    assert "keys.toml" in process.noise[0]


@pytest.mark.parametrize(("bad", "why"), BAD_OPTIONS)
def test_a_bad_option_is_named(
    redis_url: str, capsys: pytest.CaptureFixture[str], bad: dict[str, Any], why: str
) -> None:
    assert run(ServeOptions(**{"redis_url": redis_url, "port": 0, **bad})) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def test_a_bad_pool_is_named() -> None:
    result = CliRunner().invoke(serve, ["--pool", "Bad Pool"])
    assert (result.exit_code, "'Bad Pool'" in result.stderr) == (2, True)
