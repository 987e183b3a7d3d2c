"""`forebay dead`: letters are listed, shown, admitted anew and thrown away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import Result as Ran
from tests.cli.conftest import Forebay

from forebay_shared.calls import Admission, Intake, Leases, Library, Operator, Release, Shown, Take
from forebay_shared.calls.work import Blame
from forebay_shared.connect import connect
from forebay_shared.ids import new_request_id
from forebay_shared.keys import POOLS
from forebay_shared.records import Envelope, Result, Usage

SECRET = "a private prompt"
BODY = json.dumps({"prompt": SECRET}).encode()


@pytest.fixture
def dead(redis_url: str, forebay: Forebay) -> Forebay:
    """`forebay dead` on that Redis."""

    def call(*words: str, **more: Any) -> Ran:
        return forebay("dead", *words, FOREBAY_REDIS=redis_url, **more)

    return call


async def fill(url: str, classes: Sequence[str] = ("high", "high", "low")) -> list[str]:
    """A pool whose requests each killed three engines; their ids, oldest first."""
    async with connect(url) as redis:
        library = Library(redis)
        await library.start()
        await redis.zadd(POOLS, {"default": 1})
        ids = []
        for class_name in classes:
            ids.append(new_request_id("default"))
            envelope = Envelope("/v1/completions", "big", BODY)
            one = Admission(ids[-1], class_name, "acme", envelope, 60_000)
            await Intake(library).admit([one])
            await kill(Leases(library), class_name)
        return ids


async def kill(leases: Leases, class_name: str) -> None:
    worker = new_request_id("w").replace(".", "")
    for call in (1, 2, 3):
        taken = await leases.take(Take(worker, call, 1, 1, {class_name: 1}))
        gone = [
            Release(one.request_id, one.call, Blame.CRASHED, Usage(), Result("dead"))
            for one in taken.grants
        ]
        await leases.release(worker, gone)


def rows(result: Ran) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def shown(url: str, request_id: str) -> Shown | None:
    async with connect(url) as redis:
        return await Intake(Library(redis)).show(request_id)


async def status(url: str) -> dict[str, Any]:
    async with connect(url) as redis:
        return await Operator(Library(redis)).status()


async def junk(url: str, count: int) -> None:
    """Letters as of old, many at once."""
    async with connect(url) as redis, redis.pipeline(transaction=False) as pipe:
        for number in range(count):
            fields = {"id": new_request_id("default"), "reason": "lost", "class": "high"}
            rest = {"tenant": "acme", "at": number, "size": 0, "meta": "", "head": "", "body": ""}
            pipe.xadd("fb:{default}:dead", fields | rest)
        await pipe.execute()


# Looking ------------------------------------------------------------------------------------------


def test_ls(redis_url: str, dead: Forebay) -> None:
    """Newest first, with what they died of; filters find some."""
    ids = asyncio.run(fill(redis_url))
    lines = dead("ls").stdout.splitlines()
    assert lines[0].split() == ["id", "reason", "class", "tenant", "died", "bytes"]
    assert [line.split()[0] for line in lines[1:]] == list(reversed(ids))
    assert lines[1].split()[1:4] == ["crash_loop", "low", "acme"]
    assert [row["id"] for row in rows(dead("ls", "--class", "low", "--json"))] == ids[2:]
    assert rows(dead("ls", "--tenant", "other", "--json")) == []
    assert rows(dead("ls", "--older", "1h", "--json")) == []
    row = rows(dead("ls", "--reason", "crash_loop", "--json"))[-1]
    letter, died, size = row.pop("letter"), row.pop("died_at"), row.pop("bytes")
    assert "-" in letter and died > 1.6e9 and size > len(BODY)
    assert row == {
        "id": ids[0], "pool": "default", "reason": "crash_loop", "class": "high",
        "tenant": "acme", "model": "big", "requeued_as": None,
    }  # fmt: skip


def test_ls_of_thousands(redis_url: str, dead: Forebay) -> None:
    """The newest, and how the others are listed; all of them where that is wanted."""
    asyncio.run(fill(redis_url, ["high"]))
    asyncio.run(junk(redis_url, 600))
    some = dead("ls")
    assert len(some.stdout.splitlines()) == 51
    assert "there are more than 50; --limit or --all lists them" in some.stderr
    assert len(rows(dead("ls", "--limit", "70", "--json"))) == 70
    every = rows(dead("ls", "--all", "--json"))
    assert len({row["id"] for row in every}) == len(every) == 601


def test_nothing_is_told(redis_url: str, dead: Forebay) -> None:
    asyncio.run(fill(redis_url, []))
    result = dead("ls")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no dead letter in pool default" in result.stderr
    assert "no such dead letter in pool default" in dead("ls", "--reason", "lost").stderr


def test_show(redis_url: str, dead: Forebay) -> None:
    """Without what was asked, unless that is asked for."""
    [name] = asyncio.run(fill(redis_url, ["high"]))
    plain = dead("show", name)
    assert ["reason", "crash_loop"] in [line.split() for line in plain.stdout.splitlines()]
    assert SECRET not in plain.output + dead("show", name, "--json").output
    assert SECRET not in dead("ls").output + dead("ls", "--json").output
    assert SECRET in dead("show", name, "--payload").stdout
    [row] = rows(dead("show", name, "--payload", "--json"))
    assert (json.loads(row["body"]), row["head"]["path"]) == (
        {"prompt": SECRET}, "/v1/completions",
    )  # fmt: skip
    [by_letter] = rows(dead("show", row["letter"], "--json"))
    assert by_letter["id"] == name


# Admitting anew -----------------------------------------------------------------------------------


def test_requeue(redis_url: str, dead: Forebay) -> None:
    """Under a new id that names the old one; not twice while that waits. The letter stays."""
    ids = asyncio.run(fill(redis_url))
    result = dead("requeue", *ids[:2])
    assert result.stdout.splitlines() == [f"{one} → {one}.1" for one in ids[:2]]
    anew = asyncio.run(shown(redis_url, f"{ids[0]}.1"))
    assert anew is not None and (anew.state, anew.class_name) == ("queued", "high")
    again = dead("requeue", ids[0])
    assert again.exit_code == 1
    assert f"its last requeue {ids[0]}.1 still waits or runs" in again.stderr
    listed = {row["id"]: row["requeued_as"] for row in rows(dead("ls", "--json"))}
    assert listed == {ids[0]: f"{ids[0]}.1", ids[1]: f"{ids[1]}.1", ids[2]: None}


def test_requeue_of_what_another_command_says(redis_url: str, dead: Forebay) -> None:
    """Ids on standard input, some of which are none: each is told, the others are admitted."""
    ids = asyncio.run(fill(redis_url))
    unknown = new_request_id("default")
    result = dead("requeue", "-", "--json", input="\n".join([ids[0], unknown, ids[2]]))
    assert result.exit_code == 1
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row.get("requeued_as") for row in told] == [f"{ids[0]}.1", None, f"{ids[2]}.1"]
    assert f"pool default has no dead letter {unknown}" in told[1]["error"]
    nothing = dead("requeue", "-", input="")
    assert (nothing.exit_code, nothing.stdout) == (0, "")


def test_what_cannot_be_admitted_is_told(redis_url: str, dead: Forebay, forebay: Forebay) -> None:
    """With what to do about it."""
    [name] = asyncio.run(fill(redis_url, ["high"]))
    asyncio.run(junk(redis_url, 1))
    lost = rows(dead("ls", "--reason", "lost", "--json"))[0]["id"]
    assert "only its client can send it again" in dead("requeue", lost).stderr
    forebay("drain", "--pool", "--no-wait", "--redis", redis_url)
    told = dead("requeue", name).stderr
    assert "the pool drains; `forebay drain --pool default --end` ends that" in told


# Throwing away ------------------------------------------------------------------------------------


def test_purge_asks(redis_url: str, dead: Forebay) -> None:
    """And does nothing unless it is told yes, also where nobody can answer."""
    asyncio.run(fill(redis_url))
    for answer in ("n\n", ""):
        refused = dead("purge", "--class", "high", input=answer)
        assert refused.exit_code == 1
        assert "Throw 2 dead letters of pool default away for good?" in refused.stderr
    assert len(rows(dead("ls", "--json"))) == 3
    assert dead("purge", "--class", "high", input="y\n").stdout == "purged 2 of pool default\n"
    assert [row["class"] for row in rows(dead("ls", "--json"))] == ["low"]
    assert asyncio.run(status(redis_url))["ledger"]["dead"] == 3


def test_purge_of_thousands(redis_url: str, dead: Forebay) -> None:
    """By age and reason; then all."""
    asyncio.run(fill(redis_url, ["high"]))
    asyncio.run(junk(redis_url, 600))
    gone = rows(dead("purge", "--older", "7d", "--reason", "lost", "--yes", "--json"))
    assert gone == [{"pool": "default", "purged": 600}]
    assert dead("purge", "--older", "7d", "--yes").stdout.startswith("nothing to purge")
    assert dead("purge", "--all", "--yes").stdout == "purged 1 of pool default\n"
    assert asyncio.run(status(redis_url))["dead"] == 0


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["show", "nonsense"], "'nonsense' names no dead letter; `forebay dead ls` tells"),
        (["requeue", "nonsense"], "'nonsense' names no dead letter"),
        (["ls", "--reason", "boredom"], "'boredom' is not one of 'crash_loop', 'lost'"),
        (["ls", "--older", "soon"], "write it as 90s, 15m, 2h or 7d"),
        (["ls", "--limit", "0"], "0 is not in the range x>=1"),
        (["purge"], "Say which: --reason, --class, --tenant, --older, or --all alone."),
        (["purge", "--all", "--reason", "lost"], "or --all alone."),
        (["purge", "--all", "--json"], "add --yes"),
        (["show", "a.01JDX3M8Q5T2V9W7Y4Z6A1B0CD", "--pool", "b"], "of several pools (a, b)"),
    ],
)
def test_bad_input(dead: Forebay, words: list[str], told: str) -> None:
    """In a sentence that says what would do, before Redis is asked."""
    result = dead(*words, input="")
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


def test_places_where_there_are_none(redis_url: str, dead: Forebay, forebay: Forebay) -> None:
    """A letter, a pool, a Redis."""
    asyncio.run(fill(redis_url, []))
    name = "default.01JDX3M8Q5T2V9W7Y4Z6A1B0CD"
    missing = dead("show", name)
    assert missing.exit_code == 1
    assert f"pool default has no dead letter {name}" in missing.stderr
    other = dead("ls", "--pool", "otter")
    assert other.exit_code == 1
    assert "there is no pool 'otter' in this Redis; there are: default" in other.stderr
    elsewhere = dead("show", "otter.01JDX3M8Q5T2V9W7Y4Z6A1B0CD")
    assert "there is no pool 'otter'" in elsewhere.stderr
    for words in (["ls"], ["show", name], ["requeue", name], ["purge", "--all", "--yes"]):
        away = forebay("dead", *words, "--redis", "redis://127.0.0.1:1/0")
        assert away.exit_code == 1
        assert "does not answer; is it running?" in away.stderr
