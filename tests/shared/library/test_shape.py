"""The library as a text and as a set of functions: what must hold for every function of it."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from tests.model.dump import untouched
from tests.servers import Server
from tests.shared.library.driver import HeldLibrary, admit, take
from tests.shared.library.rig import POOL, request_id

from forebay_shared.library import function_name, source
from forebay_shared.settings import PoolSettings

COMMAND = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'(?:,\s*'([A-Z]+)')?")
FUNCTION = re.compile(r"function_name = 'forebay_(\w+)_@?")
CALLS = int(os.environ.get("FOREBAY_EXAMPLES", "200"))
CONTAINERS = ("XGROUP", "XINFO")

WORDS = [
    "", "0", "1", "-1", "0.5", "1.5", "1e300", "nan", "inf", "-inf", "2", "7", "100", "101", "1e15",
    "normal", "high", "ann", "w1", "done", "failed", "attempt", "crashed", "blameless", "0x10",
    "[]", "{}", "null", '{"classes":[]}', "\xff\x00", "a|b", "a,b", "%d", "*", "x" * 300,
    "serving", "m", "5-5", "5-", "-", "+", "(", "[",
]  # fmt: skip


def steps() -> list[str]:
    """The name of each function."""
    return sorted(set(re.findall(r"function_name = 'forebay_([a-z_]+)_[0-9a-f]+'", source())))


def commands() -> list[str]:
    """Each command that the text calls, as an ACL names it."""
    found = COMMAND.findall(source())
    return sorted({f"{a}|{b}".lower() if a in CONTAINERS else a.lower() for a, b in found})


def test_the_text_names_its_commands() -> None:
    """The searches above find what they are for."""
    assert len(steps()) >= 20
    assert {"xreadgroup", "xgroup|create", "zadd"} <= set(commands())
    assert source().count("redis.register_function") == len(steps())


@pytest.mark.parametrize("command", commands())
def test_selftest_fails_where_a_command_may_not_be_called(
    library: HeldLibrary, server: Server, command: str
) -> None:
    """A user without it would fail midway: it learns at start. (The product's text: all of it.)"""
    client = library.client
    client.function_load(source(), replace=True)
    client.execute_command("ACL", "SETUSER", "lame", "on", ">x", "~*", "+@all", f"-{command}")
    user = Redis.from_url(server.url, username="lame", password="x")
    with user, pytest.raises(ResponseError, match=r"permission|ACL"):
        user.fcall(function_name("selftest"), 2, *keys(library))
    client.execute_command("ACL", "DELUSER", "lame")


READERS = {"letters", "show", "settings", "status", "counts", "leaked"}
REFUSED_AT_MAXMEMORY = {"admit", "requeue", "emit"}


def test_flags_say_what_goes_on_at_maxmemory(library: HeldLibrary, client: Redis) -> None:
    """Readers write nothing, new work is refused whole, all else goes on so that memory falls."""
    [listed] = client.function_list(f"forebay_{library.mark}")
    rows = [dict(zip(row[::2], row[1::2], strict=True)) for row in listed[5]]
    flags = {row[b"name"].decode().split("_", 1)[1]: set(row[b"flags"]) for row in rows}
    for name, found in flags.items():
        step = name.removesuffix(f"_{library.mark}")
        wanted = {b"no-writes"} if step in READERS else {b"allow-oom"}
        assert found == (set() if step in REFUSED_AT_MAXMEMORY else wanted), step


def test_defaults_are_those_of_the_settings() -> None:
    """What settings of an older version do not name is what a new pool would have."""
    text = source()
    block = re.search(r"P\.DEFAULTS = \{(.*?)\n\}", text, re.DOTALL)
    assert block
    stated = {name: float(value) for name, value in re.findall(r"(\w+) = ([\d.]+)", block[1])}
    known = PoolSettings().model_dump()
    assert stated == {name: known[name] for name in stated}
    used = set(re.findall(r"q\.settings\.(\w+)", text)) - {"classes", "by_name", "cost"}
    assert used <= set(stated)


def test_selftest_leaves_nothing_behind(library: HeldLibrary, client: Redis) -> None:
    before = untouched(client, POOL)
    assert library.fcall("selftest") == b"ok"
    assert untouched(client, POOL) == before


def keys(library: HeldLibrary) -> tuple[str, str]:
    return library.keys.layout, library.keys.never


@pytest.mark.parametrize("step", steps())
def test_a_function_refuses_another_layout(library: HeldLibrary, client: Redis, step: str) -> None:
    """Every one compares it first, and writes nothing."""
    client.set(library.keys.layout, "999")
    before = untouched(client, POOL)
    with pytest.raises(ResponseError, match="LAYOUT"):
        library.fcall(step, library.text) if step == "found" else library.fcall(step)
    assert untouched(client, POOL) == before


@pytest.mark.parametrize("step", [step for step in steps() if step != "found"])
def test_a_function_refuses_a_pool_that_was_not_founded(
    library: HeldLibrary, client: Redis, step: str
) -> None:
    client.flushall()
    library.now_ms = 1
    with pytest.raises(ResponseError, match="NOLAYOUT"):
        library.fcall(step)
    assert client.keys("fb:*") == []


@pytest.mark.parametrize("step", steps())
def test_no_function_raises_after_its_first_write(
    library: HeldLibrary, client: Redis, step: str
) -> None:
    """Whatever it is given: an error leaves all that is stored as it was."""
    draw = random.Random(step)
    for number in range(5):
        admit(library, number)
    take(library, "w1", 1, count=3)
    before, refused = untouched(client, POOL), 0
    for _ in range(CALLS):
        try:
            library.fcall(step, *arguments(draw, step))
        except ResponseError as error:
            refused += 1
            assert untouched(client, POOL) == before, str(error)
        else:
            before = untouched(client, POOL)
    assert refused or step in ("selftest", "settings", "status", "rights")


def arguments(draw: random.Random, step: str) -> Iterator[str]:
    """Junk; or what the function wants, with junk in some places."""
    known = [request_id(draw.randrange(7)), "w1", "1", "1"]
    shape = SHAPES.get(step)
    if shape is None or draw.random() < 0.3:
        yield from (draw.choice(WORDS + known) for _ in range(draw.randrange(30)))
        return
    dirt = draw.choice([0.05, 0.2])
    for word in shape(draw):
        yield draw.choice(WORDS + known) if draw.random() < dirt else word


def _item(draw: random.Random) -> list[str]:
    return [request_id(draw.randrange(7)), "1"]


def _admit(draw: random.Random) -> list[str]:
    row = ["r1.1", "2"]
    for _ in range(2):
        row += [request_id(draw.randrange(99)), "normal", "ann", "1", "9999", "1", "m", "-1", "-1"]
        row += ["1", "0", "0", "k", "f", "0", "0", "5", "500", "{}", "body"]
    return row


def _take(draw: random.Random) -> list[str]:
    return ["w1", str(draw.randrange(99)), "16", "1", "1", "2", "normal", "1", "high", "1"]


def _ending(draw: random.Random) -> list[str]:
    return [*_item(draw), "done", "", "3", "0", "5", "{}", "b", "0", "2", "a", "", "b", "c"]


SHAPES = {
    "admit": _admit,
    "take": _take,
    "renew": lambda draw: ["w1", "2", *_item(draw), "1", "0", "5", *_item(draw), "1", "0", "900"],
    "emit": lambda draw: ["w1", "2", *_emission(draw), *_emission(draw)],
    "finish": lambda draw: ["w1", "2", *_ending(draw), *_ending(draw)],
    "finish_take": lambda draw: ["w1", "1", *_ending(draw), *_take(draw)],
    "release": lambda draw: ["w1", "2", *_release(draw), *_release(draw)],
    "reply": lambda draw: ["r1.1", "2", request_id(0), "0", request_id(1), "-1"],
    "cancel": lambda draw: [request_id(draw.randrange(9)), "", draw.choice(["", "r1.1"]), "1"],
    "register": lambda draw: ["w1", "serving", "4", "1", "[]", "{}", "1", "m"],
    "requeue": lambda draw: ["5-5"],
    "letters": lambda draw: ["5-5", "9", "1", "", "", "", "", "0"],
    "purge": lambda draw: ["(5-5", "lost", "", "", "", "0"],
    "switch": lambda draw: ["", ""],
}


def _emission(draw: random.Random) -> list[str]:
    return [*_item(draw), str(draw.randrange(3)), "1", "0", "2", "2", "a", "", "b", "c"]


def _release(draw: random.Random) -> list[str]:
    blame = draw.choice(["blameless", "attempt", "crashed"])
    return [*_item(draw), blame, "0.5", "1", "0", "2", "engine", "{}", "no"]


def test_all_keys_of_a_pool_share_a_slot(library: HeldLibrary, client: Redis) -> None:
    """A pool lives on one node of a cluster."""
    for number in range(3):
        admit(library, number)
    take(library, "w1", 1)
    library.fcall("order", "w1", "drain")
    library.fcall("register", "w1", "serving", 1, 0, "[]", "{}", 1, "m")
    library.fcall("sweep", 0)
    library.fcall("cancel", request_id(0), "", "", 0)
    keys = [key.decode() for key in client.keys("fb:*")]
    assert len(keys) > 12
    assert {key[: key.index("}") + 1] for key in keys} == {"fb:{rig}"}
