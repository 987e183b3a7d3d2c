"""A report for people: what is wrong in full, what is well in a line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import click

from forebay_shared.cli.doctor.findings import Finding, Level

COLOURS = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "red"}
WIDTH = 8


def show(findings: Sequence[Finding]) -> None:
    """Print the report on stdout."""
    for about, group in groupby(findings, lambda one: one.about):
        click.secho(about, bold=True)
        for one in group:
            _show(one)
    click.echo(summary(findings))


def _show(one: Finding) -> None:
    mark = click.style(f"{one.level.name.lower():<{WIDTH}}", fg=COLOURS[one.level])
    click.echo(f"  {mark}{one.check}: {one.what}")
    if one.level is not Level.OK:
        indent = " " * (WIDTH + 2)
        click.echo(f"{indent}why: {one.why}\n{indent}do:  {one.todo}")


def summary(findings: Sequence[Finding]) -> str:
    """The last line."""
    counts = [(sum(one.level is level for one in findings), level.name.lower()) for level in Level]
    bad = [f"{count} {word}{'s' if count > 1 else ''}" for count, word in counts[:0:-1] if count]
    return ", ".join(bad) or "all well"
