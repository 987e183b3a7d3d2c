"""How commands speak: results on stdout, messages on stderr, errors in a sentence, no trace."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import click

STOPPED_CODE = 128 + signal.SIGINT
"""Exit code after ^C, as shells have it."""

_Result = TypeVar("_Result")
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Problem(click.ClickException):
    """What went wrong and what to do about it, in words for whoever typed the command."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a command did: for people, and for programs."""

    words: str
    facts: dict[str, Any]


def say(message: str) -> None:
    """A message for people; it never gets between results."""
    click.echo(message, err=True)


def print_json(value: object) -> None:
    """One JSON document on one line of stdout."""
    click.echo(json.dumps(value, ensure_ascii=False))


def run(work: Coroutine[Any, Any, _Result], on_stop: str = "stopped") -> _Result:
    """Run a command's coroutine to its end; ^C ends it with `on_stop` as the last words."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        if on_stop:
            say(on_stop)
        raise click.exceptions.Exit(STOPPED_CODE) from None


def json_option(command: _Command) -> _Command:
    """`--json`: for programs."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON on stdout and nothing else there.",
    )(command)


def example(text: str) -> str:
    """An epilog that click does not reflow."""
    return "\b\n" + "Examples:\n" + text.strip("\n")
