"""Clients of a cluster: each speaks to the server of its key, and follows when that is another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis import exceptions
from redis.asyncio import Redis
from tests.clusters import Cluster, ClusterNode
from tests.servers import Server, start_server, wait_blocked

from forebay_shared.calls import Library, Operator
from forebay_shared.connect import (
    at,
    connect,
    connect_blocking,
    each_primary,
    redis_away,
    why_unusable,
)
from forebay_shared.keys import POOLS, Keys
from forebay_shared.library import LIBRARY_NAME

pytestmark = pytest.mark.anyio

KEYS = Keys("default")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster") / "redis") as running:
        yield running


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Redis]:
    async with connect(cluster.url) as one:
        yield one


def elsewhere(cluster: Cluster) -> ClusterNode:
    """A primary that does not serve the pool."""
    return next(node for node in cluster.nodes if node is not cluster.owner(KEYS.layout))


async def test_each_key_has_the_client_of_its_server(cluster: Cluster, client: Redis) -> None:
    """The same each time, the given one for its own slot, and closed with it."""
    assert at(client, POOLS) is client
    other = at(client, KEYS.layout)
    assert at(client, KEYS.bell("high")) is other is not client
    assert at(other, KEYS.never) is other
    await client.zadd(POOLS, {"default": 1})
    await other.rpush(KEYS.bell("high"), 1)
    assert cluster.owner(KEYS.layout).client.delete(KEYS.bell("high")) == 1
    await client.aclose()
    assert not any(one.is_connected for one in other.connection_pool._available_connections)


async def test_library_is_loaded_on_every_primary(cluster: Cluster, client: Redis) -> None:
    """At the start, and once more where it is missing when the slot comes."""
    library = Library(client)
    await library.start()
    for node in cluster.primaries():
        names = [row[1].decode() for row in node.ask("FUNCTION", "LIST")]
        assert names == [LIBRARY_NAME]
    to = elsewhere(cluster)
    to.ask("FUNCTION", "FLUSH")
    await asyncio.to_thread(cluster.move_slot, KEYS.layout, to)
    assert (await Operator(library).status())["queued"] == 0


async def test_each_primary_once(cluster: Cluster, client: Redis) -> None:
    ids = [await one.execute_command("CLUSTER", "MYID") async for one in each_primary(client)]
    assert sorted(one.decode() for one in ids) == sorted(node.id for node in cluster.nodes)


async def test_one_server_is_its_only_primary(server: Server) -> None:
    async with connect(server.url) as one:
        assert at(one, "any key") is one
        assert [primary async for primary in each_primary(one)] == [one]


async def test_moved_slot_is_followed(cluster: Cluster) -> None:
    """By ordinary calls without an error; a blocked read ends soon, and nothing is missed."""
    key = KEYS.bell("low")
    blocking = connect_blocking(cluster.url, 30, key=key)
    async with connect(cluster.url, key=key) as client, blocking as reader:
        await client.rpush(key, "before")
        assert await reader.blpop([key], 1) == (key.encode(), b"before")
        reading = asyncio.create_task(reader.blpop([key], 30))
        await wait_blocked(cluster.owner(key).server, 1)
        await asyncio.to_thread(cluster.move_slot, key, elsewhere(cluster))
        await client.rpush(key, "after")
        # Its server sends it after the key, or this process has left that server before.
        (got,) = await asyncio.gather(asyncio.wait_for(reading, 5), return_exceptions=True)
        if isinstance(got, BaseException):
            assert redis_away(got), got
            got = await reader.blpop([key], 1)
        assert got == (key.encode(), b"after")


@pytest.fixture
def nameless(cluster: Cluster) -> Iterator[None]:
    """The nodes tell their ports alone, as behind a load balancer of a managed service."""
    name = "cluster-preferred-endpoint-type"
    for node in cluster.nodes:
        node.client.config_set(name, "unknown-endpoint")
    yield
    for node in cluster.nodes:
        node.client.config_set(name, "ip")


async def test_nodes_that_tell_no_names_are_where_the_others_are(
    cluster: Cluster, nameless: None
) -> None:
    """Also after a move, which then names the port alone."""
    async with connect(cluster.url, key=KEYS.layout) as client:
        assert await at(client, POOLS).zadd(POOLS, {"named": 1}) == 1
        assert await client.rpush(KEYS.bell("high"), 1) == 1
        await asyncio.to_thread(cluster.move_slot, KEYS.layout, elsewhere(cluster))
        assert await client.llen(KEYS.bell("high")) == 1


async def test_call_in_a_moving_slot_is_away_and_whole(cluster: Cluster, client: Redis) -> None:
    """Redis refuses a function before its first line while its keys are on two servers."""
    library = Library(client)
    await library.start()
    errors: list[BaseException] = []

    async def ask() -> None:
        try:
            await Operator(library).switch(paused=True)
        except exceptions.RedisError as error:
            errors.append(error)

    loop = asyncio.get_running_loop()

    def between() -> None:
        asyncio.run_coroutine_threadsafe(ask(), loop).result(10)

    await asyncio.to_thread(cluster.move_slot, KEYS.layout, elsewhere(cluster), between)
    assert errors and all(redis_away(error) and not why_unusable(error) for error in errors)
    assert not (await Operator(library).status())["paused"]


async def test_node_of_a_cluster_behind_a_plain_url_is_for_the_operator(cluster: Cluster) -> None:
    async with connect(elsewhere(cluster).server.url) as client:
        with pytest.raises(exceptions.MovedError) as caught:
            await client.set(KEYS.never, 1)
    assert "redis+cluster://" in why_unusable(caught.value)
    assert not redis_away(caught.value)


async def test_one_server_behind_a_cluster_url_is_for_the_operator(tmp_path: Path) -> None:
    with start_server(tmp_path, port=0) as single:
        url = single.url.replace("redis://", "redis+cluster://")
        async with connect(url) as client:
            with pytest.raises(exceptions.ConnectionError) as caught:
                await client.ping()
    assert "is not a node of a cluster" in why_unusable(caught.value)
