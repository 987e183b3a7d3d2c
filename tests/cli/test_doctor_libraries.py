"""Which libraries are called by living processes, and what `--prune` removes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from redis import Redis
from tests.cli.conftest import Forebay
from tests.cli.filled import fill

from forebay_shared.cli.doctor.facts import Server, read_server
from forebay_shared.cli.doctor.libraries import YOUNG_S, Usage, usage
from forebay_shared.cli.doctor.pool_facts import Pool
from forebay_shared.cli.doctor.scan import Scan
from forebay_shared.cli.doctor.upkeep import prune
from forebay_shared.cli.terminal import Problem, Told
from forebay_shared.connect import connect, connect_blocking
from forebay_shared.keys import Keys
from forebay_shared.library import LIBRARY_NAME
from forebay_shared.names import client_name

OLD, OLDER = "forebay_000000000001", "forebay_000000000002"
A, B = "a" * 16, "b" * 16
INFO = {"uptime_in_seconds": YOUNG_S}


def server(*clients: str, libraries: Sequence[str] = (LIBRARY_NAME, OLD, OLDER)) -> Server:
    return Server("server", dict(INFO), libraries=list(libraries), clients=list(clients))


def pool(*workers: tuple[str, str], replicas: Sequence[str] = ()) -> Pool:
    """Living workers by id and the library that they tell, and ids of replicas with an inbox."""
    rows = [
        {"id": one, "seen_ms": 0, "about": {"library": name} if name else {}}
        for one, name in workers
    ]
    return Pool("default", status={"workers": rows}, scan=Scan(replicas=set(replicas)))


def test_connections_tell_which_library_their_process_calls() -> None:
    """One of a process's connections is enough; others' names say nothing."""
    names = [f"forebay-producer-{A}-{OLD}", f"forebay-inbox-{A}", f"bells-{B}", "forebay-cli", "x"]
    use = usage([server(*names, f"worker-{B}-{LIBRARY_NAME}")], [pool()])
    assert use == Usage({OLD: 1, LIBRARY_NAME: 1}, [])
    assert use.unused(server()) == [OLDER]


def test_the_registry_tells_of_workers_without_connection() -> None:
    """Cut off for a moment, they come back and call their library."""
    assert usage([server()], [pool((A, OLD))]).unused(server()) == [OLDER]


def test_a_forgotten_worker_uses_nothing() -> None:
    gone = pool((A, OLD))
    gone.status["workers"][0]["seen_ms"] = 60_000
    assert usage([server()], [gone]).unused(server()) == [OLD, OLDER]


@pytest.mark.parametrize(
    ("servers", "pools", "why"),
    [
        ([server(f"worker-{A}")], [pool()], "do not tell"),
        ([server(f"bells-{A}")], [pool()], "do not tell"),
        ([server()], [pool((A, ""))], "do not tell"),
        ([server()], [pool(replicas=[A])], "do not tell"),
        ([Server("s", dict(INFO), libraries=[OLD])], [pool()], "may not call CLIENT LIST"),
        ([Server("s", {"uptime_in_seconds": 5}, None, [OLD], [])], [pool()], "less than 60 s"),
        ([server()], [Pool("default")], "not all pools"),
        ([server()], [Pool("default", scan=Scan(complete=False))], "not all pools"),
    ],
)
def test_in_doubt_none_is_unused(servers: list[Server], pools: list[Pool], why: str) -> None:
    """A process of an older version, a producer that is away, a server that has just started."""
    use = usage(servers, pools)
    assert why in "; ".join(use.unclear)
    assert use.unused(servers[0]) == []


def test_inboxes_of_producers_that_tell_are_no_doubt() -> None:
    """Their connections have told."""
    known = server(f"forebay-producer-{A}-{OLD}")
    assert usage([known], [pool(replicas=[A])]).unused(known) == [OLDER]


def put(client: Redis, *names: str) -> None:
    client.function_flush()
    for name in names:
        client.function_load(
            f"#!lua name={name}\nredis.register_function('{name}', function() end)"
        )


def left(client: Redis) -> set[str]:
    return {row[1].decode() for row in client.function_list()}


async def pruned(url: str, use: Usage) -> Told:
    async with connect(url) as redis:
        return await prune(redis, [await read_server(redis, "server")], use)


def test_prune_removes_what_nobody_calls(redis_url: str) -> None:
    """And neither this version's library nor somebody else's."""
    with Redis.from_url(redis_url) as client:
        put(client, LIBRARY_NAME, OLD, OLDER, "theirs")
        told = asyncio.run(pruned(redis_url, Usage({OLD: 3})))
        assert told.facts == {"removed": [OLDER], "kept": {LIBRARY_NAME: 0, OLD: 3}}
        assert "kept forebay_000000000001: 3 processes call it" in told.words
        assert left(client) == {LIBRARY_NAME, OLD, "theirs"}
        client.function_flush()


def test_prune_removes_nothing_in_doubt(redis_url: str) -> None:
    with Redis.from_url(redis_url) as client:
        put(client, LIBRARY_NAME, OLD)
        with pytest.raises(Problem, match="1 processes do not tell"):
            asyncio.run(pruned(redis_url, Usage({}, ["1 processes do not tell theirs"])))
        assert left(client) == {LIBRARY_NAME, OLD}
        client.function_flush()


def test_a_real_process_is_seen(redis_url: str) -> None:
    """Its connections' names are what the server lists, whatever else they do."""

    async def names() -> Usage:
        main = connect(redis_url, name=client_name("worker", A))
        bells = connect_blocking(redis_url, 1, name=f"bells-{B}")
        async with main, bells, connect(redis_url) as redis:
            await main.ping()
            await bells.ping()
            facts = await read_server(redis, "server")
            facts.info |= INFO
            return usage([facts], [])

    use = asyncio.run(names())
    assert use.by_library == {LIBRARY_NAME: 1}
    assert use.unclear == [f"1 processes do not tell theirs, as {B}"]


def test_the_command_says_why_it_removed_nothing(redis_url: str, forebay: Forebay) -> None:
    """The worker of an older version is in the registry and does not tell its library."""
    asyncio.run(fill(redis_url))
    with Redis.from_url(redis_url) as client:
        client.function_load(
            f"#!lua name={OLD}\nredis.register_function('o', function() end)", True
        )
        result = forebay("doctor", "--prune", "--redis", redis_url)
        assert result.exit_code == 1
        assert "1 processes do not tell theirs, as w1" in result.stderr
        assert OLD in left(client)
        client.function_delete(OLD)
        assert client.exists(Keys("default").layout)
