"""`forebay doctor` against real servers: what it finds, and that it changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import Result
from redis import Redis
from tests.cli.conftest import Forebay
from tests.cli.filled import fill
from tests.servers import Server, start_server

from forebay_shared.cli.doctor.tables import OF_POOLS, OF_SERVERS
from forebay_shared.keys import Keys
from forebay_shared.library import LIBRARY_NAME, source

WELL = (
    "--appendonly", "yes", "--maxmemory", "200mb",
    "--client-output-buffer-limit", "normal 256mb 128mb 60",
)  # fmt: skip
KEYS = Keys("default")
PREFIX = KEYS.every[:-1]


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as the docs want it."""
    with start_server(tmp_path_factory.mktemp("well"), extra=WELL) as running:
        yield running


@pytest.fixture
def client(well: Server) -> Iterator[Redis]:
    """A pool with two requests queued, one running and a worker, and a client of its server."""
    with Redis.from_url(well.url) as client:
        client.flushall()
        client.config_resetstat()
        before = client.config_get()
        asyncio.run(fill(well.url))
        yield client
        after = client.config_get()
        for name in before:
            if before[name] != after[name]:
                client.config_set(name, before[name])


def found(result: Result) -> dict[str, list[dict[str, Any]]]:
    """Findings that are not ok, by check."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(result.stdout)["findings"]:
        if one["level"] != "ok":
            rows.setdefault(one["check"], []).append(one)
    return rows


def look(forebay: Forebay, server: Server, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and the findings that are not ok by check. Nobody sweeps here, which is told."""
    result = forebay("doctor", "--redis", server.url, "--json", "--scan-s", "0.3", *words)
    rows = found(result)
    assert "nobody has ever" in rows.pop("sweeps", [{"what": "nobody has ever"}])[0]["what"]
    return result.exit_code, rows


def test_all_is_well(well: Server, client: Redis, forebay: Forebay) -> None:
    """Each check says so, in words and as JSON."""
    code, rows = look(forebay, well)
    assert (code, rows) == (0, {})
    told = forebay("doctor", "--redis", well.url)
    assert told.exit_code == 0
    for name in (*OF_SERVERS, *OF_POOLS, "libraries", "settings"):
        assert f"{name}: " in told.stdout
    assert "pool default" in told.stdout
    assert told.stdout.endswith("1 warning\n")  # nobody sweeps


def test_nothing_is_changed(well: Server, client: Redis, forebay: Forebay) -> None:
    """No key, no library, no setting; and no pool is founded."""
    client.function_flush()
    before = (dump(client), client.config_get(), client.function_list())
    code, _ = look(forebay, well, "--pool", "default", "--pool", "other")
    assert code == 0
    assert (dump(client), client.config_get(), client.function_list()) == before
    client.function_load(source())
    look(forebay, well)
    assert dump(client) == before[0]


def dump(client: Redis) -> dict[bytes, Any]:
    keys: list[bytes] = client.keys("*")  # type: ignore[assignment]
    return {key: (client.dump(key), client.pttl(key) < 0) for key in keys}


def test_an_empty_redis_can_be_looked_at(redis_url: str, forebay: Forebay) -> None:
    """Before the first deploy there is no pool."""
    result = forebay("doctor", "--redis", redis_url, "--json")
    assert {one["about"] for one in json.loads(result.stdout)["findings"]} == {"server"}


@pytest.mark.parametrize(
    ("name", "value", "check", "level", "words"),
    [
        ("appendonly", "no", "persistence", "failure", "the append-only file is off"),
        ("appendfsync", "no", "persistence", "warning", "appendfsync is no"),
        ("no-appendfsync-on-rewrite", "yes", "persistence", "warning", "on-rewrite is yes"),
        ("maxmemory", "0", "memory", "warning", "maxmemory is not set"),
        ("maxmemory", "1mb", "memory", "failure", "of 1 MiB used"),
        ("maxmemory-policy", "allkeys-lru", "memory", "failure", "policy is allkeys-lru"),
        ("maxmemory-policy", "volatile-ttl", "memory", "failure", "policy is volatile-ttl"),
        ("client-output-buffer-limit", "normal 0 0 0", "clients", "warning", "no limit"),
        ("client-output-buffer-limit", "normal 1mb 0 0", "clients", "failure", "is 1 MiB"),
        ("timeout", "10", "clients", "warning", "timeout is 10 s"),
        ("min-replicas-to-write", "1", "replication", "failure", "0 are there in time"),
        ("proto-max-bulk-len", "1mb", "settings", "failure", "cannot be stored"),
    ],
)  # fmt: skip
def test_a_dangerous_setting_is_found(
    well: Server,
    client: Redis,
    forebay: Forebay,
    name: str,
    value: str,
    check: str,
    level: str,
    words: str,
) -> None:
    """With why it matters and what to do; failures make the exit code 1."""
    client.config_set(name, value)
    code, rows = look(forebay, well)
    [one] = rows.pop(check)
    assert rows == {}
    assert one["level"] == level
    assert words in one["what"] + one["why"]
    assert len(one["why"]) > 20
    assert len(one["todo"]) > 20
    assert code == (1 if level == "failure" else 0)
    assert forebay("doctor", "--redis", well.url, "--strict").exit_code == 1


def test_evicted_keys_are_found_afterwards(own_server: Server, forebay: Forebay) -> None:
    """Also where the policy was mended meanwhile."""
    with Redis.from_url(own_server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        client.set("big", "x" * 100_000)
        client.config_set("maxmemory", 1)
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "noeviction")
    result = forebay("doctor", "--redis", own_server.url, "--json")
    assert "1 keys have been evicted" in found(result)["memory"][0]["what"]


@pytest.mark.parametrize(
    ("command", "broken"),
    [
        (["ZREM", "leases", "*"], "running = leases"),
        (["ZREM", "waiting:high", "*"], "queued = waiting"),
        (["ZREM", "deadlines", "*"], "deadlines = queued + running"),
        (["HINCRBY", "ledger", "done", "1"], "accepted = queued + running + ended"),
        (["HINCRBY", "clock", "queued:high", "1"], "its sum over classes"),
        (["XTRIM", "queue:low:acme:0", "MAXLEN", "0"], "entries in streams"),
    ],
)
def test_a_broken_identity_is_found(
    well: Server, client: Redis, forebay: Forebay, command: list[str], broken: str
) -> None:
    """Each of them; the numbers are of one moment."""
    name, key, *rest = command
    if rest == ["*"]:
        rest = [client.zrange(PREFIX + key, 0, 0)[0]]  # type: ignore[index,list-item]
    client.execute_command(name, PREFIX + key, *rest)  # type: ignore[no-untyped-call]
    code, rows = look(forebay, well)
    assert code == 1
    [one] = rows["identities"]
    assert broken in one["what"]
    assert "does not hold" in one["what"]


def test_foreign_entries_are_told_apart(well: Server, client: Redis, forebay: Forebay) -> None:
    """They are no loss, and the audit puts them away."""
    client.xadd(f"{PREFIX}queue:low:acme:0", {"a": "b"})
    code, rows = look(forebay, well)
    assert code == 0
    [one] = rows["identities"]
    assert "1 entries in the queues are not Forebay's" in one["what"]


LEAKED = {
    "request:default.gone": "hash",
    "output:default.gone": "stream",
    "result:default.gone": "string",
    "idempotency:acme:gone": "string",
    "inbox:aaaa.1": "stream",
    "control:w9": "list",
    "usage:acme2": "hash",
    "waiting:low2": "zset",
    "queue:low:nobody:0": "stream",
    "something": "string",
}
WRITES: dict[str, tuple[str, ...]] = {
    "hash": ("HSET", "a", "1"),
    "stream": ("XADD", "*", "a", "1"),
    "string": ("SET", "x|y"),
    "list": ("RPUSH", "a"),
    "zset": ("ZADD", "1", "a"),
}


def test_leaked_keys_are_found_and_others_not(
    well: Server, client: Redis, forebay: Forebay
) -> None:
    """Of each kind one without TTL that nobody needs; what live requests need is left alone."""
    for name, kind in LEAKED.items():
        command, *rest = WRITES[kind]
        client.execute_command(command, PREFIX + name, *rest)  # type: ignore[no-untyped-call]
    code, rows = look(forebay, well)
    assert code == 0
    [one] = rows["leaks"]
    assert f"{len(LEAKED)} keys leaked (no TTL" in one["what"]
    for name in LEAKED:
        client.delete(PREFIX + name)
    assert look(forebay, well)[1] == {}
    client.set(f"{PREFIX}result:default.gone", "{}", ex=60)
    [one] = look(forebay, well)[1]["leaks"]
    assert "the record of its request is gone" in one["what"]
    assert "result:default.gone" in one["what"]


def test_a_consumer_left_behind_is_found(well: Server, client: Redis, forebay: Forebay) -> None:
    """One that holds nothing; the worker that holds a request is none."""
    queue = f"{PREFIX}queue:high:acme:0"
    client.xgroup_createconsumer(queue, "workers", "w7")
    [one] = look(forebay, well)[1]["leaks"]
    assert "1 consumers hold nothing" in one["what"]
    assert queue in one["what"]


def test_a_scan_is_bounded(well: Server, client: Redis, forebay: Forebay) -> None:
    """It says so, and what it has not seen is not judged."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(3_000):
            pipe.set(f"{PREFIX}limits:t{number}", "", ex=60)
        pipe.execute()
    [one] = look(forebay, well, "--scan-s", "0.00001")[1]["leaks"]
    assert "only" in one["what"]
    assert "--scan-s" in one["todo"]


def test_a_pool_without_workers_is_found(well: Server, client: Redis, forebay: Forebay) -> None:
    """A failure where something waits."""
    client.zadd(f"{PREFIX}workers", {"w1": 1})
    client.hset(f"{PREFIX}worker:w1", "seen", "1")
    code, rows = look(forebay, well)
    assert code == 1
    assert "2 requests are queued and no worker is alive" in rows["workers"][0]["what"]


def test_switches_and_dead_letters_are_told(well: Server, client: Redis, forebay: Forebay) -> None:
    client.hset(f"{PREFIX}clock", mapping={"paused": 1, "draining": 1})
    client.xadd(f"{PREFIX}dead", {"id": "a"})
    told = [one["what"] for one in look(forebay, well)[1]["workers"]]
    assert told == ["the pool is paused", "the pool drains", "1 dead letters"]


def test_sizes_beyond_the_advised_are_told(well: Server, client: Redis, forebay: Forebay) -> None:
    for change in ("body_bytes=4194304", "result_bytes=33554432", "wait_replicas=1"):
        assert forebay("settings", "set", change, "--redis", well.url).exit_code == 0
    code, rows = look(forebay, well)
    told = [(one["level"], one["what"]) for one in rows["settings"]]
    assert code == 1
    assert told[:2] == [
        ("warning", "body_bytes is 4.0 MiB"),
        ("warning", "result_bytes is 32.0 MiB"),
    ]
    assert told[2] == ("failure", "wait_replicas is 1, and server has 0 replicas")


def test_another_layout_is_a_failure(well: Server, client: Redis, forebay: Forebay) -> None:
    client.set(KEYS.layout, "99")
    code, rows = look(forebay, well)
    assert code == 1
    assert "layout 99" in rows["layout"][0]["what"]


def test_a_clock_that_went_back_is_found(well: Server, client: Redis, forebay: Forebay) -> None:
    """Since the last sweep noted its time."""
    now_ms = client.time()[0] * 1000  # type: ignore[index]
    client.hset(f"{PREFIX}clock", "swept", now_ms + 60_000)
    result = forebay("doctor", "--redis", well.url, "--json")
    assert "in the future: the server's clock went back" in found(result)["sweeps"][0]["what"]
    client.hset(f"{PREFIX}clock", "swept", now_ms)
    assert found(forebay("doctor", "--redis", well.url, "--json")) == {}


def test_what_a_user_may_not_ask_is_told(well: Server, client: Redis, forebay: Forebay) -> None:
    """The rest is checked all the same."""
    rules = ["reset", "on", ">pw", "~*", "+@all", "-config", "-client|list", "-function|list"]
    client.execute_command("ACL", "SETUSER", "guest", *rules)  # type: ignore[no-untyped-call]
    url = well.url.replace("://", "://guest:pw@")
    result = forebay("doctor", "--redis", url, "--json")
    [one] = found(result)["features"]
    assert "config|get" in one["what"]
    assert "client|list" in one["what"]
    assert result.exit_code == 0
    client.execute_command("ACL", "DELUSER", "guest")  # type: ignore[no-untyped-call]


def test_secrets_of_the_url_are_not_printed(well: Server, client: Redis, forebay: Forebay) -> None:
    """Neither where all is well nor where it is not."""
    client.execute_command("ACL", "SETUSER", "default", ">sesame")  # type: ignore[no-untyped-call]
    url = well.url.replace("://", "://default:sesame@")
    told = [forebay("doctor", "--redis", url, *more) for more in ((), ("--json",), ("--load",))]
    told.append(forebay("doctor", "--redis", url.replace("default", "nobody")))
    assert [one.exit_code for one in told] == [0, 0, 0, 1]
    assert "sesame" not in "".join(one.output for one in told)
    client.execute_command("ACL", "SETUSER", "default", "nopass")  # type: ignore[no-untyped-call]


def test_load_puts_the_library_there_once(well: Server, client: Redis, forebay: Forebay) -> None:
    """Before a deploy; others stay."""
    client.function_flush()
    client.function_load("#!lua name=forebay_other\nredis.register_function('o', function() end)")
    before = forebay("doctor", "--redis", well.url, "--json")
    assert f"this version's library ({LIBRARY_NAME}) is not loaded" in before.stdout
    told = [forebay("doctor", "--load", "--redis", well.url) for _ in range(2)]
    assert [one.stdout for one in told] == [
        f"library {LIBRARY_NAME} loaded\n",
        f"library {LIBRARY_NAME} was there already\n",
    ]
    assert {row[1].decode() for row in client.function_list()} == {LIBRARY_NAME, "forebay_other"}


@pytest.mark.parametrize("words", [("--acl", "--load"), ("--prune", "--acl-file")])
def test_one_thing_at_a_time(forebay: Forebay, words: tuple[str, ...]) -> None:
    assert forebay("doctor", *words).exit_code == 2


def test_a_bad_pool_name_is_refused(forebay: Forebay) -> None:
    result = forebay("doctor", "--acl", "--pool", "a b")
    assert result.exit_code == 2
    assert "1 to 32 of a-z" in result.stderr


def test_an_old_server_is_told() -> None:
    """One that has no function libraries fails, and says which it needs."""
    from forebay_shared.cli.doctor.facts import Server as Facts
    from forebay_shared.cli.doctor.features import features

    old = Facts("server", {"redis_version": "6.2.14"}, has_functions=False)
    [one] = features(old)
    assert "Redis 6.2.14 has no function libraries" in one.what
    assert "Valkey 7.2" in one.todo
