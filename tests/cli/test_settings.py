"""`forebay settings`: shown, changed strictly, and never over somebody else's change."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.cli.conftest import Forebay
from tests.cli.filled import fill

from forebay_shared.calls import Library, Operator
from forebay_shared.connect import connect
from forebay_shared.settings import PoolSettings


@pytest.fixture
def settings(redis_url: str, forebay: Forebay) -> Forebay:
    """`forebay settings` on a pool with two requests of class high and one of class low."""
    asyncio.run(fill(redis_url))

    def call(*words: str, **more: Any) -> Result:
        return forebay("settings", *words, FOREBAY_REDIS=redis_url, **more)

    return call


async def stored(url: str) -> tuple[PoolSettings, int]:
    async with connect(url) as redis:
        return await Operator(Library(redis)).settings()


def shown(settings: Forebay) -> dict[str, Any]:
    """What `show --json` prints."""
    value: dict[str, Any] = json.loads(settings("show", "--json").stdout)
    return value


def test_show(settings: Forebay) -> None:
    """Each name as `set` takes it, the default beside what was changed, and the epoch."""
    assert settings("set", "classes.high.weight=10").exit_code == 0
    lines = settings("show").stdout.splitlines()
    assert lines[0] == "pool default, epoch 2"
    rows = [line.split(maxsplit=1) for line in lines[1:]]
    assert ["lease_ms", "15000"] in rows
    assert ["cost.cached", "0.1"] in rows
    assert ["classes.critical.strict", "true"] in rows
    assert ["classes.high.weight", "10.0  (default 8.0)"] in rows
    names = [name for name, _ in rows if not name.startswith(("cost.", "classes."))]
    assert {*names, "cost", "classes"} == set(PoolSettings.model_fields)


def test_set_prints_the_difference_and_stores_it(settings: Forebay, redis_url: str) -> None:
    """Plain, of costs and of a class, in one step."""
    result = settings("set", "depth=20000", "cost.output=3", "classes.low.strict=true")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[:3] == [
        ["classes.low.strict", "false", "→", "true"],
        ["cost.output", "2.0", "→", "3.0"],
        ["depth", "10000", "→", "20000"],
    ]
    assert "pool default is at epoch 2; running processes read it within seconds" in result.stdout
    now, epoch = asyncio.run(stored(redis_url))
    assert (now.depth, now.cost.output, now.classes[3].strict, epoch) == (20_000, 3.0, True, 2)
    assert now.classes[1].weight == 8


def test_json(settings: Forebay) -> None:
    """The difference for programs; none, and no new epoch, where there is none."""
    result = json.loads(settings("set", "--json", "attempts=5").stdout)
    assert result == {"pool": "default", "epoch": 2, "changed": {"attempts": [3, 5]}}
    again = json.loads(settings("set", "--json", "attempts=5").stdout)
    assert again == {"pool": "default", "epoch": 2, "changed": {}}
    assert "nothing to change" in settings("set", "attempts=5").stdout


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("leese_ms=1", "There is no setting 'leese_ms'; there are: cost.prompt, cost.cached"),
        ("cost.outputs=1", "There is no setting 'cost.outputs'"),
        ("classes.high.wait=1", "There is no setting 'classes.high.wait'"),
        ("classes.high.name=up", "There is no setting 'classes.high.name'"),
        ("classes.hihg.weight=1", "There is no class 'hihg'; there are: critical, high"),
        ("cost=1", "There is no setting 'cost'"),
        ("lease_ms", "'lease_ms' is not NAME=VALUE"),
        ("lease_ms=15s", "lease_ms: Input should be a valid integer"),
        ("lease_ms=true", "lease_ms: Input should be a valid integer"),
        ("classes.high.weight=-1", "classes.high.weight: Input should be greater than 0"),
        ("classes.high.weight=Infinity", "Numbers must be finite"),
        ("lease_ms=6000", "lease_ms must be at least 3 × renew_ms"),
    ],
)
def test_what_cannot_be_is_refused(
    settings: Forebay, redis_url: str, change: str, told: str
) -> None:
    """Bad input, in a sentence; nothing is changed, not even what would have been good."""
    result = settings("set", "attempts=9", change)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
    now, epoch = asyncio.run(stored(redis_url))
    assert (now, epoch) == (PoolSettings(), 1)


def test_the_names_that_are_listed_are_those_that_are_taken(settings: Forebay) -> None:
    """A list that lied would be worse than none."""
    listed = settings("set", "nothing=1").stderr.split("there are: ")[1].strip(".\n").split(", ")
    assert "classes.<name>.cap" in listed
    value = shown(settings)["settings"]
    for name in listed:
        holder: Any = value
        for part in name.split(".")[:-1]:
            holder = value["classes"][1] if part == "<name>" else holder[part]
        same = json.dumps(holder[name.split(".")[-1]])
        result = settings("set", f"{name.replace('<name>', 'high')}={same}")
        assert "nothing to change" in result.stdout, result.output


def test_a_file_that_show_has_printed(settings: Forebay, redis_url: str, tmp_path: Path) -> None:
    """Edited and taken over; where somebody else was faster, nothing is changed."""
    path = tmp_path / "settings.json"
    value = shown(settings)
    value["settings"]["classes"][1]["weight"] = 16
    path.write_text(json.dumps(value))
    assert settings("set", "depth=5000").exit_code == 0
    late = settings("set", "--file", str(path))
    assert late.exit_code == 1
    assert "somebody else was faster: these changes were made to epoch 1" in late.stderr
    assert "the settings are at epoch 2. Nothing was changed" in late.stderr
    now, epoch = asyncio.run(stored(redis_url))
    assert (now.depth, now.classes[1].weight, epoch) == (5_000, 8, 2)
    path.write_text(json.dumps(shown(settings) | {"settings": value["settings"]}))
    assert settings("set", "--file", str(path)).exit_code == 0
    now, epoch = asyncio.run(stored(redis_url))
    assert (now.depth, now.classes[1].weight, epoch) == (10_000, 16, 3)


def test_a_file_of_some_settings(settings: Forebay, redis_url: str, tmp_path: Path) -> None:
    """What it does not name stays; what is typed goes over it."""
    path = tmp_path / "settings.json"
    path.write_text('{"cost": {"output": 4}, "depth": 7, "attempts": 2}')
    assert settings("set", "cost.prompt=2").exit_code == 0
    assert settings("set", "--file", str(path), "depth=8").exit_code == 0
    now, _ = asyncio.run(stored(redis_url))
    assert (now.cost.output, now.cost.prompt, now.depth, now.attempts) == (4, 2, 8, 2)


def test_a_class_with_requests_stays(settings: Forebay, redis_url: str, tmp_path: Path) -> None:
    """One without them goes."""
    path = tmp_path / "settings.json"
    rows = [one for one in shown(settings)["settings"]["classes"] if one["name"] != "low"]
    path.write_text(json.dumps({"classes": rows}))
    used = settings("set", "--file", str(path))
    assert used.exit_code == 1
    assert "class low still has requests, so it cannot go; nothing was changed" in used.stderr
    path.write_text(json.dumps({"classes": [{"name": "low"}, {"name": "high", "weight": 8}]}))
    gone = settings("set", "--file", str(path)).stdout
    assert "critical, high, normal, low, background → low, high" in gone
    assert [line.split() for line in gone.splitlines()][1] == [
        "classes.critical.weight", "1.0", "→", "–"
    ]  # fmt: skip
    now, _ = asyncio.run(stored(redis_url))
    assert now.class_names() == ["low", "high"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no JSON object"),
        ('{"settings": {}}', "has settings without their pool and epoch"),
        ('{"leese_ms": 1}', "There is no setting 'leese_ms'"),
        ('{"classes": [{"name": "a", "wait": 1}]}', "There is no setting 'classes.a.wait'"),
        ('{"classes": [1]}', "classes.0: Input should be an object"),
        ('{"classes": 1}', "classes: Input should be a valid array"),
    ],
)
def test_a_file_that_cannot_be(settings: Forebay, tmp_path: Path, text: str, told: str) -> None:
    """Bad input, in a sentence."""
    path = tmp_path / "settings.json"
    path.write_text(text)
    result = settings("set", "--file", str(path))
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


def test_nothing_said(settings: Forebay) -> None:
    """Bad input, with what could be said."""
    result = settings("set")
    assert result.exit_code == 2
    assert "Say what to change: NAME=VALUE, or --file." in result.stderr
