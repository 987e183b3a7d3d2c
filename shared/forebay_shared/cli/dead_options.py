"""Which dead letters a command is about, and how one of them is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from forebay_shared.calls import Letter, Letters, Wanted
from forebay_shared.cli.terminal import Problem
from forebay_shared.ids import pool_of

REASONS = ("crash_loop", "lost", "undecodable")
UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
ENTRY = re.compile(r"\d+-\d+")
"""What has no request id is named by its entry."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _age_ms(_: click.Context, __: click.Parameter, value: str | None) -> int:
    if value is None:
        return 0
    match = re.fullmatch(r"(\d{1,6})([smhd])", value)
    if match is None:
        raise click.BadParameter("write it as 90s, 15m, 2h or 7d")
    return int(match.group(1)) * UNITS_MS[match.group(2)]


def wanted_options(command: _Command) -> _Command:
    """`--reason`, `--class`, `--tenant`, `--older`."""
    for option in (
        click.option("--older", "older_ms", callback=_age_ms, metavar="AGE",
                     help="Those that died at least so long ago: 90s, 15m, 2h, 7d."),
        click.option("--tenant", default="", metavar="NAME", help="Those of this tenant."),
        click.option("--class", "class_name", default="", metavar="NAME",
                     help="Those of this class."),
        click.option("--reason", type=click.Choice(REASONS), help="Those that died of this."),
    ):  # fmt: skip
        command = option(command)
    return command


def wanted_of(reason: str | None, class_name: str, tenant: str, older_ms: int) -> Wanted:
    return Wanted(reason or "", class_name, tenant, "", older_ms)


def pool_named(names: tuple[str, ...], pool: str | None) -> str | None:
    """The pool of letters that are named: as told, else as their ids say.

    Raises UsageError where a name could not be one, or where they are of several pools.
    """
    pools = {pool} if pool else set()
    for name in names:
        own = pool_of(name)
        if own is None and not ENTRY.fullmatch(name):
            raise click.UsageError(
                f"{name!r} names no dead letter; `forebay dead ls` tells their ids"
            )
        pools |= {own} if own else set()
    if len(pools) > 1:
        told = ", ".join(sorted(pools))
        raise click.UsageError(f"These letters are of several pools ({told}); name those of one.")
    return pools.pop() if pools else None


async def find(letters: Letters, name: str, pool: str, payload: bool) -> Letter:
    """The newest letter of this name. Raises Problem where there is none."""
    if ENTRY.fullmatch(name):
        found = await letters.at(name, payload=payload)
    else:
        wanted = Wanted(request_id=name)
        found = await anext(letters.each(wanted, payload=payload), None)
    if found is None:
        raise Problem(not_found(name, pool))
    return found


def not_found(name: str, pool: str) -> str:
    return (
        f"pool {pool} has no dead letter {name}; `forebay dead ls --pool {pool}` lists those kept"
    )


def facts(letter: Letter, pool: str) -> dict[str, Any]:
    """What programs are told of a letter, without its payload."""
    return {
        "id": letter.request_id or None,
        "letter": letter.entry,
        "pool": pool,
        "reason": letter.reason,
        "class": letter.class_name,
        "tenant": letter.tenant,
        "model": letter.model or None,
        "died_at": letter.died_ms / 1000,
        "bytes": letter.size_bytes,
        "requeued_as": letter.requeued_as or None,
    }
