"""What docs/operations.md tells people to type, write and watch exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from forebay_producer.keysfile import read_keys
from forebay_shared.cli import main
from forebay_shared.metrics import TABLE

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
LINES = sorted(
    {line.split("#")[0].split(" > ")[0].strip() for line in re.findall(r"(?m)^forebay .+$", TEXT)}
    | set(re.findall(r"`(forebay [a-z][^`]*)`", TEXT))
)


@pytest.mark.parametrize("line", LINES)
def test_commands_exist(line: str) -> None:
    """The whole line is understood: command, options, arguments."""
    words = shlex.split(line)[1:]
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    words = [word for word in words if word != "settings.json"]
    words = [word for word in words if word not in ("--file", "--keys", "keys.toml")]
    assert command.make_context(command.name, words).args == []


def test_metrics_exist() -> None:
    """By name and labels."""
    known = {one.name: one.labels for one in TABLE}
    named = re.findall(r"`(forebay_[a-z_]+)(?:\{([a-z,]+)\})?`", TEXT)
    assert len(named) > 10
    for name, labels in named:
        assert known.get(name) == (tuple(labels.split(",")) if labels else ())


def test_the_keys_file_can_be_read(tmp_path: Path) -> None:
    """As it stands there."""
    path = tmp_path / "keys.toml"
    path.write_text(TEXT.split("```toml\n")[1].split("```")[0])
    assert {one.tenant for one in read_keys(path).values()} == {"acme", "nightly"}
