"""`forebay` without a command: help at once, and commands that say how they are used."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from tests.cli.conftest import Forebay

from forebay_shared.cli import COMMANDS, main
from forebay_shared.cli.lazy import LazyCommand

HERE = tuple(name for name, one in COMMANDS.items() if one.place.startswith("forebay_shared."))
HERE += ("settings show", "settings set")
HERE += ("dead ls", "dead show", "dead requeue", "dead purge")


def test_help_lists_every_command(forebay: Forebay) -> None:
    """Each with its line, in the order of the table."""
    lines = forebay("--help").output.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")][: len(COMMANDS)] == [
        *COMMANDS
    ]


def test_help_imports_nothing_heavy() -> None:
    """No HTTP client, no Redis, no tables: help takes a fraction of a second."""
    code = (
        "import sys; from forebay_shared.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('aiohttp', 'redis', 'rich', 'pydantic') if m in sys.modules])"
    )
    before = os.times()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = os.times()
    # Time on the processor: how long it takes beside others says nothing of the command.
    took_s = sum(after[2:4]) - sum(before[2:4])
    print(f"forebay --help: {took_s:.2f} s")
    assert run.stdout.splitlines()[-1] == "[]"
    assert took_s < 0.3


@pytest.mark.parametrize("name", HERE)
def test_each_command_shows_an_example(forebay: Forebay, name: str) -> None:
    """And describes each of its options."""
    result = forebay(*name.split(), "--help")
    assert result.exit_code == 0
    assert f"Examples:\n    forebay {name}" in result.output
    command: click.Command | None = main
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option)]
    bare = [one.name for one in options if not one.help]
    assert bare == []


def test_version(forebay: Forebay) -> None:
    """One line that begins with the name."""
    result = forebay("--version")
    assert result.exit_code == 0
    assert result.output.startswith("forebay")


def test_an_unknown_command_is_told(forebay: Forebay) -> None:
    """With the code of bad input."""
    result = forebay("sumbit")
    assert result.exit_code == 2
    assert "No such command 'sumbit'" in result.output


def test_a_place_without_a_command_is_a_mistake() -> None:
    """The table is ours: a wrong line is found, not hidden."""
    with pytest.raises(TypeError, match="json:dumps is not a click command"):
        LazyCommand("json:dumps", "").load()
