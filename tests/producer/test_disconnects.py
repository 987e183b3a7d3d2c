"""Clients that hang up: synchronous requests are cancelled within a second, and nothing leaks."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.producer.running import BODY, CHAT, QUICK, Running, serving, until
from tests.producer.scripted import ScriptedWorker, working
from tests.producer.scripts import answer, chunk, gated, stay
from tests.servers import start_server

from forebay_shared.calls import Grant

pytestmark = pytest.mark.anyio
STREAM = {**BODY, "stream": True}
KEY = {"idempotency-key": "k"}


async def connect(one: Running, lines: list[str], raw: bytes = b"") -> asyncio.StreamWriter:
    """Send a request on a connection of its own, which the test closes when it likes."""
    host, port = one.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join([*lines, "host: x", "", ""]).encode() + raw)
    await writer.drain()
    return writer


async def send(one: Running, body: dict[str, Any], **headers: str) -> asyncio.StreamWriter:
    raw = json.dumps(body).encode()
    lines = [f"POST {CHAT} HTTP/1.1", f"content-length: {len(raw)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return await connect(one, lines, raw)


async def look(one: Running, path: str) -> asyncio.StreamWriter:
    return await connect(one, [f"GET {path} HTTP/1.1"])


def armed(one: Running) -> int:
    inbox = one.producer.replica.pools["default"].inbox
    return sum(reader.armed for reader in inbox.readers())


async def leave(one: Running, writer: asyncio.StreamWriter) -> None:
    """Hang up, and wait until Redis has been told."""
    waiters = one.producer.waiters()
    writer.close()
    await until(lambda: one.producer.waiters() == waiters - 1)
    await one.producer.replica.finish_cancellations()


async def watched_by(one: Running, request_id: str) -> None:
    """Wait until this replica is among those that Redis tells of the request."""
    pool = one.producer.replica.pools["default"]
    async with asyncio.timeout(5):
        while pool.inbox.name.encode() not in await watchers(one, request_id):
            pass


async def watchers(one: Running, request_id: str) -> bytes:
    pool = one.producer.replica.pools["default"]
    (key,) = await pool.redis.keys(f"*:request:{request_id}")
    found: Any = await pool.redis.hget(key, "watchers")
    return bytes(found)


async def state(one: Running, request_id: str) -> str:
    shown = await one.producer.replica.pools["default"].intake.show(request_id)
    assert shown is not None
    return shown.state


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_a_running_request_is_cancelled(redis_url: str, body: dict[str, Any]) -> None:
    async with serving(redis_url) as one, working(redis_url, stay) as worker:
        writer = await send(one, body)
        (grant,) = await worker.wait_granted()
        writer.close()
        await worker.wait_order(f"cancel {grant.request_id}", within_s=1)
        assert await state(one, grant.request_id) == "cancelled"
        await until(lambda: one.producer.waiters() == 0)


@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_a_queued_request_is_cancelled(redis_url: str, body: dict[str, Any]) -> None:
    async with serving(redis_url) as one:
        writer = await send(one, body)
        await until(lambda: armed(one) == 1)
        (reader,) = one.producer.replica.pools["default"].inbox.readers()
        writer.close()
        shown = await one.http.get(f"/v1/requests/{reader.request_id}?wait=1")
        assert shown.json()["state"] == "cancelled"


async def test_a_stream_is_cancelled_after_its_first_events(redis_url: str) -> None:
    async def begin(worker: ScriptedWorker, grant: Grant) -> None:
        await worker.emit(grant, 0, chunk("a"))

    async with serving(redis_url) as one, working(redis_url, begin) as worker:
        async with one.http.stream("POST", CHAT, json=STREAM) as reply:
            await anext(reply.aiter_raw())
        await worker.wait_order("cancel", within_s=1)


async def test_a_stream_is_cancelled_while_its_client_reads_slowly(redis_url: str) -> None:
    """The hang-up is seen although the answer is stuck in full buffers."""

    async def flood(worker: ScriptedWorker, grant: Grant) -> None:
        for n in range(200):
            if await worker.emit(grant, n, b"x" * 100_000) != "ok":
                return

    async with serving(redis_url) as one, working(redis_url, flood) as worker:
        writer = await send(one, STREAM)
        await worker.wait_granted()
        await asyncio.sleep(0.3)
        writer.transport.abort()
        await worker.wait_order("cancel", within_s=2)


async def test_a_client_that_leaves_while_sending_admits_nothing(redis_url: str) -> None:
    async with serving(redis_url) as one:
        host, port = one.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{".encode())
        await writer.drain()
        writer.close()
        await asyncio.sleep(0.1)
        status = await one.producer.replica.pools["default"].operator.status()
    assert status["ledger"]["accepted"] == 0


async def test_an_asynchronous_request_goes_on(redis_url: str) -> None:
    gate = asyncio.Event()
    async with serving(redis_url) as one, working(redis_url, gated(gate)) as worker:
        writer = await send(one, BODY, prefer="respond-async")
        (grant,) = await worker.wait_granted()
        writer.close()
        await asyncio.sleep(0.3)
        gate.set()
        shown = await one.http.get(f"/v1/requests/{grant.request_id}?wait=5")
    assert shown.json()["state"] == "done"


async def test_many_that_leave_at_once_are_all_cancelled_within_a_second(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, stay) as worker:
        writers = [await send(one, STREAM) for _ in range(60)]
        await worker.wait_granted(60)
        for writer in writers:
            writer.close()
        async with asyncio.timeout(2):
            async with worker.news:
                await worker.news.wait_for(lambda: len(worker.orders) == 60)
        await until(lambda: len(one.producer.replica.pools["default"].canceller) == 0)
        await until(lambda: one.producer.waiters() == 0)


async def test_nothing_is_left_over_after_many_requests(redis_url: str) -> None:
    """Readers, tasks and Redis connections return to what they were."""
    async with serving(redis_url) as one, working(redis_url, answer):
        pool = one.producer.replica.pools["default"]

        async def burst() -> tuple[int, int]:
            bodies = [BODY if n % 2 else STREAM for n in range(40)]
            await asyncio.gather(*(one.http.post(CHAT, json=body) for body in bodies))
            await until(lambda: one.producer.waiters() == 0)
            clients = await pool.redis.client_list()
            await asyncio.sleep(0.05)
            return len(asyncio.all_tasks()), len(clients)

        tasks, clients = await burst()
        for _ in range(2):
            after = await burst()
        assert after[0] <= tasks + 2
        assert after[1] <= clients + 2


async def test_another_reader_keeps_the_request_alive(redis_url: str) -> None:
    """Of two that wait for the same request here, either may leave; the last one ends it."""
    async with serving(redis_url) as one, working(redis_url, stay) as worker:
        first = await send(one, BODY, **KEY)
        (grant,) = await worker.wait_granted()
        last = await send(one, BODY, **KEY)
        await until(lambda: one.producer.waiters() == 2)
        await leave(one, first)
        assert await state(one, grant.request_id) == "running"
        last.close()
        await worker.wait_order(f"cancel {grant.request_id}", within_s=1)


async def test_a_reader_at_another_replica_keeps_the_request_alive(redis_url: str) -> None:
    """The one that admitted may leave; whoever reads along elsewhere decides then."""
    async with serving(redis_url) as a, serving(redis_url) as b, working(redis_url, stay) as worker:
        first = await send(a, BODY, **KEY)
        (grant,) = await worker.wait_granted()
        last = await send(b, BODY, **KEY)
        await until(lambda: armed(b) == 1)
        await leave(a, first)
        assert await state(a, grant.request_id) == "running"
        last.close()
        await worker.wait_order(f"cancel {grant.request_id}", within_s=1)


@pytest.mark.parametrize("part", ["/events", "?wait=20"])
async def test_who_follows_elsewhere_keeps_the_request_alive(redis_url: str, part: str) -> None:
    async with serving(redis_url) as a, serving(redis_url) as b, working(redis_url, stay) as worker:
        asking = await send(a, STREAM)
        (grant,) = await worker.wait_granted()
        follower = await look(b, f"/v1/requests/{grant.request_id}{part}")
        await watched_by(b, grant.request_id)
        await leave(a, asking)
        assert await state(a, grant.request_id) == "running"
        follower.close()
        await worker.wait_order(f"cancel {grant.request_id}", within_s=1)


async def test_what_somebody_comes_back_for_goes_on(redis_url: str) -> None:
    """A synchronous request that was submitted again to go on by itself outlives its readers."""
    async with serving(redis_url) as one, working(redis_url, stay) as worker:
        asking = await send(one, BODY, **KEY)
        (grant,) = await worker.wait_granted()
        again = {**KEY, "prefer": "respond-async"}
        accepted = await one.http.post(CHAT, content=json.dumps(BODY), headers=again)
        assert accepted.json()["id"] == grant.request_id
        await leave(one, asking)
        assert await state(one, grant.request_id) == "running"


async def test_a_cancellation_waits_for_redis_to_return(tmp_path: Any) -> None:
    server = start_server(tmp_path)
    try:
        quick = replace(QUICK, block_s=1)
        async with (
            serving(server.url, timings=quick) as one,
            working(server.url, stay) as worker,
        ):
            writer = await send(one, BODY)
            (grant,) = await worker.wait_granted()
            server.pause()
            writer.close()
            await until(lambda: one.producer.waiters() == 0)
            server.resume()
            await worker.wait_order(f"cancel {grant.request_id}")
    finally:
        server.resume()
        server.stop()
