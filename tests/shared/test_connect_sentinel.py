"""Clients under Sentinel: they find the primary, follow it, and believe no replica.

The Sentinel is one that says what the test wants; the servers are real.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import exceptions
from tests.servers import Server, free_port, start_server, wait_blocked

from forebay_shared.connect import at, connect, connect_blocking, redis_away, why_unusable

pytestmark = pytest.mark.anyio


class SaidSentinel:
    """Answers every question with the place of `primary`, or with none."""

    def __init__(self, primary: Server | None) -> None:
        self.primary = primary
        self.asked = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.place = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            self.asked += 1
            writer.write(self._answer())
        writer.close()

    def _answer(self) -> bytes:
        if self.primary is None:
            return b"*-1\r\n"
        port = self.primary.url.rpartition(":")[2]
        return f"*2\r\n$9\r\n127.0.0.1\r\n${len(port)}\r\n{port}\r\n".encode()

    def stop(self) -> None:
        self._server.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Two servers, both primaries until a test says otherwise."""
    with ExitStack() as both:
        folders = [tmp_path / name for name in ("a", "b")]
        for folder in folders:
            folder.mkdir()
        quickly = ("--shutdown-timeout", "0")  # else a primary waits for its replica at its end
        a, b = (both.enter_context(start_server(one, port=0, extra=quickly)) for one in folders)
        yield a, b


@pytest.fixture
async def sentinel(pair: tuple[Server, Server]) -> AsyncIterator[SaidSentinel]:
    one = SaidSentinel(pair[0])
    await one.start()
    yield one
    one.stop()


@pytest.fixture
def url(sentinel: SaidSentinel) -> str:
    return f"redis+sentinel://{sentinel.place}/main"


async def test_finds_the_primary_and_asks_no_more_than_once(
    sentinel: SaidSentinel, url: str, pair: tuple[Server, Server]
) -> None:
    """Many connections share one answer; the client is the same for every key."""
    async with connect(url) as client, connect(pair[0].url) as direct:
        await asyncio.gather(*(client.rpush("list", n) for n in range(10)))
        assert await direct.llen("list") == 10
        assert sentinel.asked == 1
        assert at(client, "another key") is client


async def test_first_call_after_an_unnoticed_failover_works(
    sentinel: SaidSentinel, url: str, pair: tuple[Server, Server]
) -> None:
    async with connect(url) as client, connect(pair[1].url) as direct:
        await client.ping()
        pair[0].kill()
        sentinel.primary = pair[1]
        await direct.ping()  # the kill held up the loop: let it see what happened
        await client.set("key", "value")
        assert await direct.get("key") == b"value"


async def test_blocked_readers_follow_when_any_call_has_noticed(
    sentinel: SaidSentinel, url: str, pair: tuple[Server, Server]
) -> None:
    """A primary that hangs holds up nobody until the time-out of a blocked read."""
    blocking = connect_blocking(url, 30)
    async with blocking as reader, connect(url, timeout_s=0.3) as client:
        await client.ping()
        reading = asyncio.create_task(reader.blpop(["bell"], 30))
        await wait_blocked(pair[0], 1)
        pair[0].pause()
        sentinel.primary = pair[1]
        with pytest.raises(exceptions.TimeoutError):
            await client.ping()
        await client.rpush("bell", "ring")
        with pytest.raises(exceptions.ConnectionError) as caught:
            await asyncio.wait_for(reading, 1)
        assert redis_away(caught.value)
        assert await reader.blpop(["bell"], 1) == (b"bell", b"ring")


async def test_demoted_primary_is_left(
    sentinel: SaidSentinel, url: str, pair: tuple[Server, Server]
) -> None:
    """Its refusal to write is no answer: the repeat goes to the new one."""
    async with connect(url) as client, connect(pair[0].url) as old:
        await client.ping()
        await old.replicaof("127.0.0.1", pair[1].url.rpartition(":")[2])
        sentinel.primary = pair[1]
        with pytest.raises(exceptions.ReadOnlyError):
            await client.set("key", "value")
        assert await client.set("key", "value")


async def test_replica_is_not_believed(url: str, pair: tuple[Server, Server]) -> None:
    """Neither for writes nor for reads, whatever the Sentinel says, until it was promoted."""
    async with connect(url) as client, connect(pair[0].url) as direct:
        await direct.replicaof("127.0.0.1", pair[1].url.rpartition(":")[2])
        with pytest.raises(exceptions.ConnectionError, match="is a replica") as caught:
            await client.get("key")
        assert redis_away(caught.value) and not why_unusable(caught.value)
        await direct.replicaof("NO", "ONE")
        assert await client.get("key") is None


async def test_server_that_accepts_and_is_silent_costs_the_time_to_connect(
    url: str, pair: tuple[Server, Server]
) -> None:
    """And not the time that an answer may take, so that a failover is soon seen."""
    pair[0].pause()
    began_s = time.monotonic()
    async with connect(url, connect_timeout_s=0.3, timeout_s=30) as client:
        with pytest.raises(exceptions.TimeoutError):
            await client.ping()
    assert 0.2 < time.monotonic() - began_s < 2


async def test_sentinels_that_are_gone_are_passed_over(
    sentinel: SaidSentinel, pair: tuple[Server, Server]
) -> None:
    """One that answers is enough; without any, where the primary was last."""
    url = f"redis+sentinel://127.0.0.1:{free_port()},{sentinel.place}/main"
    async with connect(url) as client, connect(pair[0].url) as direct:
        assert await client.ping()
        sentinel.stop()
        pair[0].restart()
        await direct.ping()  # the restart held up the loop: let it see what happened
        assert await client.ping()


async def test_nobody_to_ask_is_away_and_names_those_asked() -> None:
    place = f"127.0.0.1:{free_port()}"
    async with connect(f"redis+sentinel://{place}/main") as client:
        with pytest.raises(exceptions.ConnectionError, match=place) as caught:
            await client.ping()
    assert redis_away(caught.value) and not why_unusable(caught.value)


async def test_unknown_service_is_for_the_operator(sentinel: SaidSentinel, url: str) -> None:
    sentinel.primary = None
    async with connect(url) as client:
        with pytest.raises(exceptions.ConnectionError) as caught:
            await client.ping()
    assert "watches no service 'main'" in why_unusable(caught.value)


async def test_server_that_is_no_sentinel_is_for_the_operator(pair: tuple[Server, Server]) -> None:
    place = pair[0].url.removeprefix("redis://")
    async with connect(f"redis+sentinel://{place}/main") as client:
        with pytest.raises(exceptions.ConnectionError) as caught:
            await client.ping()
    assert "is not a Sentinel" in why_unusable(caught.value)
