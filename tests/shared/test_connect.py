"""Redis clients: what they promise over a healthy, a silent, a restarted and a refusing server."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import anyio
import pytest
from redis import exceptions
from redis.asyncio import Redis
from tests.servers import Server, start_server, wait_blocked

from forebay_shared.connect import (
    connect,
    connect_blocking,
    redis_away,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url) as client:
        yield client


@pytest.fixture
async def own(own_server: Server) -> AsyncIterator[Redis]:
    async with connect(own_server.url, timeout_s=0.2) as client:
        yield client


async def raised(call: Awaitable[object]) -> Exception:
    """What the awaited call raises."""
    try:
        answer = await call
    except exceptions.RedisError as error:
        return error
    pytest.fail(f"no error but {answer!r}")


# --- ordinary calls


async def test_replies_are_bytes_in_resp2_shapes(client: Redis) -> None:
    """Binary values come back as they went in, and XREAD answers with lists."""
    body = bytes(range(256))
    entry = await client.xadd("s", {"body": body})
    assert await client.xread({"s": "0"}) == [[b"s", [(entry, {b"body": body})]]]


async def test_200_parallel_calls_share_20_connections(redis_url: str) -> None:
    """Calls wait for a connection instead of failing, each gets its own reply, none is left."""
    replies = {}
    async with connect(redis_url) as observer, connect(redis_url, max_connections=20) as client:

        async def echo(number: int) -> None:
            replies[number] = await client.echo(str(number))

        before = (await observer.info("clients"))["connected_clients"]
        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(echo, number)
        at_end = (await observer.info("clients"))["connected_clients"]
    assert replies == {number: str(number).encode() for number in range(200)}
    assert 1 < at_end - before <= 20


async def test_cancelled_calls_leave_no_reply_behind(redis_url: str) -> None:
    """Whatever is cancelled halfway, every other call gets the reply to its own question."""
    moment = random.Random(1)
    replies = {}
    async with connect(redis_url, max_connections=5) as client:

        async def echo(number: int) -> None:
            with anyio.move_on_after(moment.uniform(0, 0.2)):
                replies[number] = await client.echo(str(number))

        async with anyio.create_task_group() as group:
            for number in range(500):
                group.start_soon(echo, number)
        assert await client.echo("after") == b"after"
    assert 0 < len(replies) < 500
    assert replies == {number: str(number).encode() for number in replies}


async def test_a_busy_pool_gives_up_after_its_wait(redis_url: str) -> None:
    """A caller that finds every connection taken learns it within pool_wait_s."""
    async with (
        connect(redis_url, max_connections=1, pool_wait_s=0.05) as client,
        anyio.create_task_group() as group,
    ):
        group.start_soon(client.blpop, ["nothing"], 10)
        await anyio.wait_all_tasks_blocked()
        assert redis_away(await raised(client.ping()))
        group.cancel_scope.cancel()


async def test_name_shows_in_client_list(redis_url: str) -> None:
    async with connect(redis_url, name="worker-7") as client:
        assert "worker-7" in [each["name"] for each in await client.client_list()]


async def test_tcp_connections_are_kept_alive_30_10_6(tmp_path: Path) -> None:
    """The socket of a TCP connection carries what we asked for."""
    with start_server(tmp_path, port=0) as server:
        async with connect(server.url) as client:
            connection = await client.connection_pool.get_connection()
            of = connection._writer.get_extra_info("socket").getsockopt
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            assert of(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert [of(socket.IPPROTO_TCP, name) for name in names] == [30, 10, 6]
            await client.connection_pool.release(connection)


# --- a silent or restarted server


async def test_silent_server_times_out_once(own: Redis, own_server: Server) -> None:
    """A server that stops answering costs one time-out, without repeats, and serves again after."""
    await own.ping()
    own_server.pause()
    began = time.monotonic()
    error = await raised(own.ping())
    took = time.monotonic() - began
    own_server.resume()
    assert isinstance(error, exceptions.TimeoutError) and redis_away(error)
    assert 0.2 <= took < 1
    assert await own.ping()


async def test_timed_out_write_is_not_repeated(own: Redis, own_server: Server) -> None:
    """The server finds the write once when it wakes, though its reply came too late."""
    await own.ping()
    own_server.pause()
    await raised(own.rpush("list", "entry"))
    own_server.resume()
    assert await own.lrange("list", 0, -1) == [b"entry"]


async def test_restarted_server_is_used_without_an_error(own: Redis, own_server: Server) -> None:
    """Connections that a restart broke are replaced before a call is put on them."""
    await own.ping()
    own_server.restart()
    async with connect(own_server.url) as other:
        await other.ping()  # the restart held up the loop: let it see what happened
    assert await own.ping()


# --- blocked reads


async def test_cancelled_blocking_read_returns_at_once(redis_url: str, server: Server) -> None:
    """Within 100 ms; the reader then reads on, and no entry goes to the cancelled read."""
    async with connect_blocking(redis_url, 10) as reader, connect(redis_url) as client:

        async def read() -> None:
            await reader.blpop(["bell"], 10)

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await wait_blocked(server, 1)
            began = time.monotonic()
            group.cancel_scope.cancel()
        assert time.monotonic() - began < 0.1
        await wait_blocked(server, 0)
        await client.rpush("bell", "ring")
        assert await reader.blpop(["bell"], 1) == (b"bell", b"ring")


async def test_blocking_read_may_last_longer_than_an_ordinary_call(redis_url: str) -> None:
    """An empty read ends when Redis says so, and not in a time-out of the client."""
    async with connect_blocking(redis_url, 0.2) as reader:
        assert await reader.blpop(["nothing"], 0.2) is None
        assert reader.connection_pool.connection_kwargs["socket_timeout"] == 5.2
        assert reader.connection_pool.max_connections == 1


async def test_blocking_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        connect_blocking("redis://localhost", 0)


@pytest.mark.parametrize("limit", ["max_connections", "timeout_s", "pool_wait_s"])
def test_limits_must_be_above_zero(limit: str) -> None:
    with pytest.raises(ValueError, match="above 0"):
        connect("redis://host", **{limit: 0})  # type: ignore[arg-type]
