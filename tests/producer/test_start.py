"""A Redis that will not serve as it is: told in one line and exit 1 at the start, borne later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from tests.producer.running import QUICK, serving, until
from tests.servers import Server, start_server

from forebay_producer.options import ServeOptions
from forebay_producer.serve import run
from forebay_shared.library import source

USERS = {
    "no-fcall": "+@all -fcall",
    "no-info": "+@all -info",
    "no-xadd": "+@all -xadd",  # one that the library calls inside
}


@pytest.fixture
def tcp(tmp_path: Path) -> Iterator[Server]:
    """A server with users: a URL of a unix socket names none."""
    with start_server(tmp_path, port=0) as running:
        with redis.Redis.from_url(running.url) as client:
            for user, may in USERS.items():
                client.execute_command("ACL", "SETUSER", user, "on", ">pw-1", "~*", *may.split())
        yield running


Said = Callable[[str], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Said:
    """Start a producer that must end by itself; its one line."""
    return lambda url: _said(url, capsys, caplog)


def _said(url: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> str:
    assert run(ServeOptions(url, port=0, timings=QUICK)) == 1
    assert [row for row in caplog.records if row.levelno >= logging.WARNING] == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("forebay serve: ")
    assert "pw-1" not in line
    return line


@pytest.mark.parametrize(
    ("login", "why"),
    [
        ("none:pw-1", "it refused user or password"),
        ("no-fcall:pw-1", "+fcall"),
        ("no-info:pw-1", "'info'"),
        ("no-xadd:pw-1", "xadd"),
    ],
)
def test_a_user_that_cannot_serve_ends_the_start(
    tcp: Server, said: Said, login: str, why: str
) -> None:
    assert why in said(tcp.url.replace("//", f"//{login}@")).lower()


def test_another_layout_ends_the_start(redis_url: str, said: Said) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.function_load(source(), replace=True)
        client.set("fb:{default}:layout", "999")
    assert "LAYOUT" in said(redis_url)


@pytest.mark.anyio
async def test_later_it_waits_for_the_operator(tcp: Server) -> None:
    with redis.Redis.from_url(tcp.url) as client:
        client.execute_command("ACL", "SETUSER", "may", "on", ">pw-1", "~*", "+@all")
        url = tcp.url.replace("//", "//may:pw-1@")
        async with serving(url, timings=replace(QUICK, block_s=1)) as one:
            client.execute_command("ACL", "SETUSER", "may", "-info")
            await until(lambda: not one.producer.replica.is_redis_up())
            assert not one.producer.replica.unusable.is_set()
            assert (await one.http.get("/readyz")).status_code == 503
            client.execute_command("ACL", "SETUSER", "may", "+info")
            await one.ready()
