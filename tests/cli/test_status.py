"""`forebay status` against a real server with a pool on it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rich.console import Console
from tests.cli.conftest import Forebay
from tests.cli.filled import fill

from forebay_shared.cli.status_view import pools_view, seconds
from forebay_shared.keys import Keys


def cells(output: str, first: str) -> list[str]:
    """The words of the table row that begins with `first`."""
    return next(line.split() for line in output.splitlines() if line.startswith(first))


def test_a_pool_in_tables(redis_url: str, forebay: Forebay) -> None:
    """Classes with weight, queued, running; the workers; the ledger; the models."""
    asyncio.run(fill(redis_url))
    result = forebay("status", "--redis", redis_url)
    assert result.exit_code == 0
    output = result.stdout
    assert "pool default  2 queued, 1 running" in output
    assert cells(output, "critical") == ["critical", "strict", "0", "0", "–", "0"]
    assert cells(output, "high")[:4] == ["high", "8", "1", "1"]
    assert cells(output, "low")[:4] == ["low", "2", "1", "0"]
    assert cells(output, "low")[5:] == ["s", "1"]
    assert cells(output, "w1")[:4] == ["w1", "serving", "1", "8"]
    assert cells(output, "w1")[-3:] == ["sim", "box", "big"]
    assert "models: big" in output
    assert "ledger: accepted 3" in output


def test_json_is_one_document_a_pool(redis_url: str, forebay: Forebay) -> None:
    """And nothing else on stdout."""
    asyncio.run(fill(redis_url))
    asyncio.run(fill(redis_url, "other"))
    result = forebay("status", "--json", FOREBAY_REDIS=redis_url)
    pools = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["pool"] for one in pools] == ["default", "other"]
    assert pools[0]["workers"][0]["models"] == ["big"]
    only = forebay("status", "--json", "--redis", redis_url, "--pool", "other")
    assert json.loads(only.stdout)["pool"] == "other"


def test_a_pool_that_is_not_there_is_not_made(redis_url: str, forebay: Forebay) -> None:
    """A slip of the pen must not found one."""
    asyncio.run(fill(redis_url))
    result = forebay("status", "--redis", redis_url, "--pool", "defualt")
    assert result.exit_code == 1
    assert result.stderr == "Error: there is no pool 'defualt' in this Redis; there are: default\n"
    assert forebay("status", "--redis", redis_url, "--pool", "defualt").exit_code == 1


def test_another_layout_is_told(redis_url: str, forebay: Forebay) -> None:
    """Of a pool that a newer version keeps: a sentence, no trace."""
    asyncio.run(fill(redis_url))
    with Redis.from_url(redis_url) as client:
        client.set(Keys("default").layout, "99")
    result = forebay("status", "--redis", redis_url)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: this forebay cannot work with unix://")
    assert "layout 99" in result.stderr


def test_an_empty_redis_is_told(redis_url: str, forebay: Forebay) -> None:
    """With the command that makes a pool."""
    result = forebay("status", "--redis", redis_url)
    assert result.exit_code == 1
    assert "has no pool yet; a worker makes one" in result.stderr


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://:secret@127.0.0.1:1/0", "Redis at redis://:***@127.0.0.1:1/0 does not answer"),
        ("http://127.0.0.1", "it must begin with redis://"),
    ],
)
def test_no_redis_is_told(forebay: Forebay, url: str, told: str) -> None:
    """In one sentence, without a password."""
    result = forebay("status", "--redis", url)
    assert result.exit_code == 1
    assert told in result.stderr
    assert "secret" not in result.stderr


def test_no_embedded_server_is_told(forebay: Forebay, tmp_path: Path) -> None:
    """Where no Redis is named either."""
    for result in (
        forebay("status", "--state", str(tmp_path)),
        forebay("status", FOREBAY_STATE=str(tmp_path)),
    ):
        assert result.exit_code == 1
        assert "no embedded server runs; start one with `forebay up`" in result.stderr


def test_watch_shows_it_again_until_stopped(redis_url: str) -> None:
    """A line each second; ^C ends it."""
    asyncio.run(fill(redis_url))
    words = ["status", "--redis", redis_url, "--watch", "--json"]
    watching = subprocess.Popen(
        [sys.executable, "-m", "forebay_shared.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    shown = [json.loads(watching.stdout.readline()) for _ in range(2)]
    watching.send_signal(signal.SIGINT)
    _, told = watching.communicate(timeout=10)
    assert 900 < shown[1]["now_ms"] - shown[0]["now_ms"] < 5_000
    assert watching.returncode == 130
    assert told == ""


def test_trouble_is_shown() -> None:
    """No worker, requests that failed, a pool that is switched off."""
    pool: dict[str, Any] = {
        "pool": "p",
        "queued": 1_234,
        "running": 0,
        "per_second": 0,
        "delayed": 3,
        "dead": 2,
        "paused": True,
        "draining": True,
        "classes": [],
        "workers": [],
        "models": [],
        "ledger": {},
    }
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(pools_view([pool]))
    text = console.export_text()
    assert "1,234 queued" in text
    assert "3 wait for a retry, 2 dead letters" in text
    assert " PAUSED: workers are given nothing; `forebay resume --pool p` ends it" in text
    assert " DRAINING: new requests are refused; `forebay drain --pool p --end` ends it" in text
    assert "no worker is alive; start one with `forebay work`" in text
    assert "models: none known" in text


@pytest.mark.parametrize(
    ("value_s", "shown"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (61, "1 min 1 s"),
        (3_600, "1 h 0 min"),
        (90_000, "25 h 0 min"),
    ],
)
def test_durations(value_s: float, shown: str) -> None:
    """In at most two units."""
    assert seconds(value_s) == shown
