"""The ACL users that `forebay doctor` prints: a server takes them, and overlooks no placeholder."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError
from tests.cli.conftest import Forebay
from tests.servers import start_server

from forebay_shared.cli.doctor.acl import PASSWORD
from forebay_shared.keys import EVERY, POOLS, Keys

HASH = "#" + hashlib.sha256(b"pw").hexdigest()


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client
        for name in ("forebay-service", "forebay-operator"):
            client.acl_deluser(name)


def lines(forebay: Forebay, *words: str) -> list[str]:
    """On stdout; it asks no Redis."""
    result = forebay("doctor", "--acl", *words)
    assert result.exit_code == 0
    return result.stdout.splitlines()


def test_the_placeholder_is_no_password(client: Redis, forebay: Forebay) -> None:
    """A server refuses the lines until it is replaced."""
    for line in lines(forebay):
        with pytest.raises(ResponseError, match="hash"):
            client.execute_command(*shlex.split(line))  # type: ignore[no-untyped-call]
    assert client.acl_users() == ["default"]


def test_the_users_are_those_two(client: Redis, forebay: Forebay) -> None:
    """Bound to the pools that are named, or to Forebay's keys."""
    for words, keys in (
        (
            ("--pool", "a", "--pool", "b"),
            ["~" + Keys("a").every, "~" + Keys("b").every, "~" + POOLS],
        ),
        ((), ["~" + EVERY]),
    ):
        for line in lines(forebay, *words):
            client.execute_command(*shlex.split(line.replace(PASSWORD, HASH)))  # type: ignore[no-untyped-call]
        for name in ("forebay-service", "forebay-operator"):
            assert client.acl_getuser(name)["keys"] == keys  # type: ignore[index]


@pytest.mark.parametrize(
    "command",
    ["FLUSHALL", "FUNCTION FLUSH", "CONFIG SET maxmemory 1", "ACL LIST", "KEYS *", "SHUTDOWN",
     "MONITOR", "SCRIPT FLUSH", "EVAL 1 0", "SAVE", "REPLICAOF no one"],
)  # fmt: skip
def test_neither_may_do_harm(client: Redis, redis_url: str, forebay: Forebay, command: str) -> None:
    for line in lines(forebay):
        client.execute_command(*shlex.split(line.replace(PASSWORD, HASH)))  # type: ignore[no-untyped-call]
    for name in ("forebay-service", "forebay-operator"):
        with Redis.from_url(redis_url, username=name, password="pw") as user:
            with pytest.raises(NoPermissionError):
                user.execute_command(*command.split())  # type: ignore[no-untyped-call]
            with pytest.raises(NoPermissionError):
                user.get("other")


def test_the_service_may_not_load_functions(
    client: Redis, redis_url: str, forebay: Forebay
) -> None:
    """The operator may, and may look; neither changes settings of the server."""
    for line in lines(forebay):
        client.execute_command(*shlex.split(line.replace(PASSWORD, HASH)))  # type: ignore[no-untyped-call]
    code = "#!lua name=forebay_1\nredis.register_function('f', function() end)"
    with Redis.from_url(redis_url, username="forebay-service", password="pw") as user:
        for call in (lambda: user.function_load(code), user.config_get, user.client_list):
            with pytest.raises(NoPermissionError):
                call()
    with Redis.from_url(redis_url, username="forebay-operator", password="pw") as user:
        user.function_load(code)
        user.function_delete("forebay_1")
        user.config_get("maxmemory")


def test_an_acl_file_is_taken(tmp_path: Path, forebay: Forebay) -> None:
    """As the server reads it at its start."""
    result = forebay("doctor", "--acl-file", "--pool", "default")
    file = tmp_path / "users.acl"
    file.write_text(result.stdout.replace(PASSWORD, HASH))
    with (
        start_server(tmp_path, extra=("--aclfile", str(file))) as server,
        Redis.from_url(server.url, username="forebay-service", password="pw") as user,
    ):
        assert user.zrange(POOLS, 0, -1) == []


def test_json_for_programs(forebay: Forebay) -> None:
    rows = json.loads(forebay("doctor", "--acl", "--json").stdout)
    assert [one["user"] for one in rows] == ["forebay-service", "forebay-operator"]
    assert set(rows[0]["rules"]) < set(rows[1]["rules"])
