"""`forebay dead ls` and `forebay dead show`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from forebay_shared.calls import Letter, Letters, Library, Operator, Wanted
from forebay_shared.cli.dead_options import facts, find, pool_named, wanted_of, wanted_options
from forebay_shared.cli.pools import open_pool, pool_option
from forebay_shared.cli.redis_place import named_or_running, redis_options
from forebay_shared.cli.terminal import example, json_option, print_json, run, say

LIMIT = 50
ROW = "{:<40} {:<11} {:<10} {:<16} {:>7} {:>11}"
LS_EXAMPLES = example("""
  forebay dead ls
  forebay dead ls --reason crash_loop --class high --older 1h
  forebay dead ls --all --json > letters.jsonl
""")
SHOW_EXAMPLES = example("""
  forebay dead show default.01JDX3M8Q5T2V9W7Y4Z6A1B0CD
  forebay dead show 1764450000000-0 --payload
""")


@click.command(epilog=LS_EXAMPLES)
@wanted_options
@click.option("--limit", type=click.IntRange(min=1), default=LIMIT, show_default=True,
              help="Most letters.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="However many there are.")
@redis_options
@pool_option
@json_option
def ls(
    reason: str | None,
    class_name: str,
    tenant: str,
    older_ms: int,
    limit: int,
    every: bool,
    redis_url: str | None,
    state: Path | None,
    pool: str | None,
    as_json: bool,
) -> None:
    """List dead letters, newest first, without what was asked.

    With --json one object a line. What has no id is named by its letter.
    """
    wanted = wanted_of(reason, class_name, tenant, older_ms)
    most = None if every else limit
    run(_ls(named_or_running(redis_url, state), pool, wanted, most, as_json))


async def _ls(url: str, pool: str | None, wanted: Wanted, most: int | None, as_json: bool) -> None:
    async with open_pool(url, pool) as library:
        now_ms = (await Operator(library).status())["now_ms"]
        count = 0
        async for letter in Letters(library).each(wanted):
            if count == most:
                say(f"there are more than {most:,}; --limit or --all lists them, filters find them")
                break
            count += 1
            _tell_row(letter, library.pool, now_ms, count == 1, as_json)
        if not count:
            such = "" if wanted == Wanted() else "such "
            say(f"no {such}dead letter in pool {library.pool}")


def _tell_row(letter: Letter, pool: str, now_ms: int, first: bool, as_json: bool) -> None:
    if as_json:
        print_json(facts(letter, pool))
        return
    if first:
        click.echo(ROW.format("id", "reason", "class", "tenant", "died", "bytes"))
    words = (letter.name, letter.reason, letter.class_name, letter.tenant)
    click.echo(ROW.format(*words, _ago(now_ms - letter.died_ms), f"{letter.size_bytes:,}"))


def _ago(ms: int) -> str:
    """Such as 5 m, in the largest unit of which there are two."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        if ms >= 2 * length:
            return f"{ms // length} {unit}"
    return f"{max(0, ms) // 1000} s"


@click.command(epilog=SHOW_EXAMPLES)
@click.argument("name", metavar="ID")
@click.option("--payload", is_flag=True, help="Also what was asked: prompts are private.")
@redis_options
@pool_option
@json_option
def show(
    name: str,
    payload: bool,
    redis_url: str | None,
    state: Path | None,
    pool: str | None,
    as_json: bool,
) -> None:
    """Show the dead letter ID: of what it died, and what became of it since."""
    own = pool_named((name,), pool)
    letter, opened = run(_show(named_or_running(redis_url, state), own, name, payload))
    known = facts(letter, opened)
    if as_json:
        print_json(known | (_payload(letter) if payload else {}))
        return
    for word, value in known.items():
        if value is not None:
            click.echo(f"{word:<12} {value}")
    if payload:
        click.echo(f"\n{_text(letter.head)}\n\n{_text(letter.body)}")


async def _show(url: str, pool: str | None, name: str, payload: bool) -> tuple[Letter, str]:
    async with open_pool(url, pool) as library:
        return await _found(library, name, payload), library.pool


async def _found(library: Library, name: str, payload: bool) -> Letter:
    return await find(Letters(library), name, library.pool, payload)


def _payload(letter: Letter) -> dict[str, object]:
    head = json.loads(letter.head) if letter.head else None
    return {"head": head, "body": _text(letter.body)}


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
