"""`forebay dead requeue`: letters are admitted anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from forebay_shared.calls import Letter, Letters, Requeued, Wanted
from forebay_shared.cli.dead_options import ENTRY, not_found, pool_named
from forebay_shared.cli.pools import open_pool, pool_option
from forebay_shared.cli.redis_place import named_or_running, redis_options
from forebay_shared.cli.terminal import example, json_option, print_json, run, say

EXAMPLES = example("""
  forebay dead requeue default.01JDX3M8Q5T2V9W7Y4Z6A1B0CD
  forebay dead ls --reason lost --all --json | jq -r .id | forebay dead requeue -
""")
WHY_NOT = {
    "live": "its last requeue {id} still waits or runs; see `forebay show {id}`",
    "none": "it has gone meanwhile",
    "payload": "its payload was lost with its entry: only its client can send it again",
    "class": "its class {class_name} is no more; add it with `forebay settings set --file`",
    "draining": "the pool drains; `forebay drain --pool {pool} --end` ends that",
    "often": "it was requeued 9,999 times",
}


@click.command(epilog=EXAMPLES)
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@redis_options
@pool_option
@json_option
def requeue(
    names: tuple[str, ...],
    redis_url: str | None,
    state: Path | None,
    pool: str | None,
    as_json: bool,
) -> None:
    """Admit the dead letters ID... anew, beyond all limits; - reads ids from standard input.

    Each becomes a request <id>.<n> of its own, with its class, tenant and time to its deadline.
    The letter stays. The exit code is 1 if one was not admitted.
    """
    if names == ("-",):
        names = tuple(sys.stdin.read().split())
        if not names:
            say("nothing to requeue: standard input names no letter")
            return
    own = pool_named(names, pool)
    rows = run(_requeue(named_or_running(redis_url, state), own, dict.fromkeys(names)))
    for row in rows:
        _tell(row, as_json)
    if any("error" in row for row in rows):
        raise click.exceptions.Exit(1)


def _tell(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(row)
    elif "error" in row:
        say(f"{row['id']} was not admitted: {row['error']}")
    else:
        click.echo(f"{row['id']} → {row['requeued_as']}")


async def _requeue(url: str, pool: str | None, names: dict[str, None]) -> list[dict[str, Any]]:
    async with open_pool(url, pool) as library:
        letters, rows = Letters(library), []
        known = await _entries(letters, names)
        for name in names:
            if name in known:
                did = await letters.requeue(known[name])
                rows.append({"id": name} | _outcome(did, library.pool))
            else:
                rows.append({"id": name, "error": not_found(name, library.pool)})
        return rows


async def _entries(letters: Letters, names: dict[str, None]) -> dict[str, str]:
    """Name → entry of its newest letter; all letters are read once, however many are named."""
    known = {name: name for name in names if ENTRY.fullmatch(name)}
    missing = names.keys() - known.keys()
    if not missing:
        return known
    if len(missing) == 1:
        return known | await _entry(letters, *missing)
    async for letter in letters.each(Wanted()):
        _note(letter, known, missing)
        if not missing:
            break
    return known


async def _entry(letters: Letters, name: str) -> dict[str, str]:
    found = await anext(letters.each(Wanted(request_id=name)), None)
    return {name: found.entry} if found else {}


def _note(letter: Letter, known: dict[str, str], missing: set[str]) -> None:
    if letter.request_id in missing:
        known[letter.request_id] = letter.entry
        missing.remove(letter.request_id)


def _outcome(did: Requeued, pool: str) -> dict[str, str]:
    if did.outcome == "ok":
        return {"requeued_as": did.request_id}
    told = WHY_NOT[did.outcome]
    return {"error": told.format(id=did.request_id, class_name=did.class_name, pool=pool)}
