"""What errors of Redis mean, asked of real servers wherever one can be brought to answer so."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
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
    redis_full,
    why_unusable,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def own(own_server: Server) -> AsyncIterator[Redis]:
    async with connect(own_server.url) as client:
        yield client


async def raised(call: Awaitable[object]) -> Exception:
    """What the awaited call raises."""
    try:
        answer = await call
    except exceptions.RedisError as error:
        return error
    pytest.fail(f"no error but {answer!r}")


async def first_refusal(call: Callable[[], Awaitable[object]]) -> Exception:
    """Calls until the server refuses, as fast as it answers; returns the refusal."""
    with anyio.fail_after(5):
        while True:
            try:
                await call()
            except exceptions.RedisError as error:
                return error


async def test_no_server_is_away(own: Redis, own_server: Server) -> None:
    own_server.kill()
    error = await raised(own.ping())
    assert isinstance(error, exceptions.ConnectionError) and redis_away(error)


async def test_server_that_dies_under_a_call_is_away(own_server: Server) -> None:
    errors = []
    async with connect_blocking(own_server.url, 10) as reader:

        async def read() -> None:
            errors.append(await raised(reader.blpop(["nothing"], 10)))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await wait_blocked(own_server, 1)
            own_server.kill()
    assert [redis_away(error) for error in errors] == [True]


async def test_read_only_replica_is_away(own: Redis) -> None:
    await own.replicaof("127.0.0.1", 1)
    error = await raised(own.set("key", "value"))
    assert isinstance(error, exceptions.ReadOnlyError)
    assert redis_away(error) and not redis_full(error)


async def test_cut_off_replica_is_away(own: Redis) -> None:
    await own.config_set("replica-serve-stale-data", "no")
    await own.replicaof("127.0.0.1", 1)
    error = await raised(own.get("key"))
    assert isinstance(error, exceptions.MasterDownError) and redis_away(error)


async def test_primary_without_replicas_is_away(own: Redis) -> None:
    await own.config_set("min-replicas-to-write", 1)
    error = await raised(own.set("key", "value"))
    assert "NOREPLICAS" in str(error) and redis_away(error)


async def test_failed_snapshot_is_away(tmp_path: Path) -> None:
    """MISCONF, which Redis answers to writes after it could not save; alone and in a pipeline."""
    with start_server(tmp_path, extra=("--dbfilename", "taken", "--save", "3600 1000")) as server:
        (tmp_path / "taken").mkdir()
        async with connect(server.url) as client:
            await client.bgsave()
            error = await first_refusal(lambda: client.set("key", "value"))
            async with client.pipeline(transaction=False) as pipe:
                pipe.set("key", "two\nlines")
                in_pipeline = await raised(pipe.execute())
    assert "MISCONF" in str(error) and redis_away(error) and redis_away(in_pipeline)


async def test_full_server_is_full_and_not_away(own: Redis) -> None:
    await own.config_set("maxmemory", 1)
    error = await raised(own.set("key", "value"))
    assert (
        isinstance(error, exceptions.OutOfMemoryError)
        and redis_full(error)
        and not redis_away(error)
    )


async def test_function_at_maxmemory_is_full(own: Redis) -> None:
    """Also where Redis refuses a function before its first line."""
    await own.function_load(
        "#!lua name=lib\nredis.register_function('fill', function() return 1 end)"
    )
    await own.config_set("maxmemory", 1)
    error = await raised(own.fcall("fill", 0))
    assert redis_full(error) and not redis_away(error)


async def test_loading_server_is_away(tmp_path: Path) -> None:
    """A server that reads its data back answers LOADING, and serves again after it."""
    slowly = ("--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024")
    with start_server(tmp_path, extra=slowly) as server:
        async with connect(server.url) as client, connect(server.url) as observer:
            await observer.execute_command("DEBUG", "POPULATE", 1000, "key", 64)
            await observer.config_set("key-load-delay", 300)
            async with anyio.create_task_group() as group:
                group.start_soon(client.execute_command, "DEBUG", "RELOAD")
                error = await first_refusal(lambda: observer.get("key"))
            assert await observer.exists("key:0")
    assert isinstance(error, exceptions.BusyLoadingError) and redis_away(error)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("reset"),
        exceptions.TimeoutError("silent"),
        exceptions.BusyLoadingError("loading"),
        exceptions.ClusterDownError("The cluster is down"),
        exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
        exceptions.ClusterError("TTL exhausted."),
        exceptions.ResponseError("BUSY Redis is busy running a script."),
    ],
    ids=repr,
)
def test_errors_that_no_test_server_gives_are_away(error: Exception) -> None:
    assert redis_away(error) and not redis_full(error)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ResponseError("WRONGTYPE Operation against a key of another kind"),
        exceptions.ResponseError("BUSYGROUP Consumer Group name already exists"),
        exceptions.ResponseError("ERR the body says MISCONF or OOM"),
        exceptions.NoScriptError("No matching script."),
        exceptions.DataError("Invalid input"),
        ValueError("MISCONF"),
        OSError("not from the client"),
    ],
    ids=repr,
)
def test_other_errors_are_neither_away_nor_full(error: Exception) -> None:
    assert not redis_away(error) and not redis_full(error)


def test_server_that_wants_a_certificate_is_told() -> None:
    """As servers say it that do not merely hang up; a connection cut in TLS says nothing."""
    said = exceptions.ConnectionError("Error while reading")
    said.__context__ = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] required")
    assert "ssl_certfile" in why_unusable(said)
    said.__context__ = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
    assert why_unusable(said) == "" and redis_away(said)


async def test_wrong_password_is_told_apart(tmp_path: Path) -> None:
    with start_server(tmp_path, extra=("--requirepass", "right")) as server:
        async with connect(server.url.replace("unix://", "unix://:wrong@")) as client:
            error = await raised(client.ping())
        async with connect(server.url.replace("unix://", "unix://:right@")) as client:
            assert await client.ping()
    assert why_unusable(error) == "it refused user or password" and redis_away(error)
    assert why_unusable(exceptions.AuthenticationError("as over TCP"))
    assert not why_unusable(exceptions.ConnectionError("reset"))
    assert "wrong@" not in str(error)
