"""`forebay pause`, `forebay resume`: whether workers are given anything."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.cli.conftest import Forebay
from tests.cli.filled import fill

from forebay_shared.calls import Grant, Leases, Library, Take
from forebay_shared.connect import connect


async def taken(url: str, call: int) -> list[Grant]:
    """What a worker that asks for two requests is given."""
    async with connect(url) as redis:
        reply = await Leases(Library(redis)).take(Take("w2", call, 8, 2, {"high": 2, "low": 2}))
        return list(reply.grants)


def switched(forebay: Forebay, *words: str) -> dict[str, Any]:
    """What the command says with --json."""
    result = forebay(*words, "--json")
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def test_a_paused_pool_gives_nothing_until_it_is_resumed(redis_url: str, forebay: Forebay) -> None:
    """What waits is kept; status says so, and how it ends."""
    asyncio.run(fill(redis_url))
    where = ("--redis", redis_url)
    told = forebay("pause", *where)
    assert told.exit_code == 0
    assert "pool default is paused: workers are given nothing new" in told.stdout
    assert asyncio.run(taken(redis_url, 1)) == []
    shown = forebay("status", *where).stdout
    assert "PAUSED: workers are given nothing; `forebay resume --pool default` ends it" in shown
    assert forebay("resume", *where).stdout == "pool default gives requests to workers\n"
    assert len(asyncio.run(taken(redis_url, 2))) == 2
    assert "PAUSED" not in forebay("status", *where).stdout


def test_json(redis_url: str, forebay: Forebay) -> None:
    """How the pool stands after the switch."""
    asyncio.run(fill(redis_url))
    stands = {"pool": "default", "draining": False, "queued": 2, "running": 1}
    where = ("--redis", redis_url)
    assert switched(forebay, "pause", *where) == stands | {"paused": True}
    assert switched(forebay, "resume", *where) == stands | {"paused": False}


def test_resume_leaves_a_drain_as_it_is(redis_url: str, forebay: Forebay) -> None:
    """Each switch has its own end, and the one that is left is told."""
    asyncio.run(fill(redis_url))
    where = ("--redis", redis_url)
    forebay("drain", "--pool", "--no-wait", *where)
    forebay("pause", *where)
    told = forebay("resume", *where).stdout
    assert "`forebay drain --pool default --end` ends that" in told
    assert switched(forebay, "resume", *where)["draining"] is True


def test_of_several_pools_one_must_be_named(redis_url: str, forebay: Forebay) -> None:
    """Nothing is switched by a guess, and no pool is founded."""
    asyncio.run(fill(redis_url))
    asyncio.run(fill(redis_url, "other"))
    where = ("--redis", redis_url)
    result = forebay("pause", *where)
    assert result.exit_code == 1
    assert "there are several pools; say which with --pool: default, other" in result.stderr
    wrong = forebay("pause", *where, "--pool", "otter")
    assert wrong.exit_code == 1
    assert "there is no pool 'otter' in this Redis; there are: default, other" in wrong.stderr
    assert switched(forebay, "pause", "--pool", "other", *where)["paused"] is True
    pools = [json.loads(line) for line in forebay("status", "--json", *where).stdout.splitlines()]
    assert [(one["pool"], one["paused"]) for one in pools] == [("default", False), ("other", True)]
