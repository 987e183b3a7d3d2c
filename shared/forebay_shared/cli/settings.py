"""`forebay settings`: what all processes of a pool obey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forebay_shared.calls import Operator
from forebay_shared.calls.operator import ClassInUse, SettingsChanged
from forebay_shared.cli.pools import open_pool, pool_option
from forebay_shared.cli.redis_place import named_or_running, redis_options
from forebay_shared.cli.settings_edit import Edit, differences, flat, read_file, typed
from forebay_shared.cli.terminal import Problem, Told, example, json_option, print_json, run
from forebay_shared.settings import PoolSettings

EXAMPLES = example("""
  forebay settings show
  forebay settings set depth=20000 classes.high.weight=10
""")
SHOW_EXAMPLES = example("""
  forebay settings show
  forebay settings show --json > settings.json
""")
SET_EXAMPLES = example("""
  forebay settings set lease_ms=30000 renew_ms=10000
  forebay settings set cost.output=3 classes.high.weight=10
  forebay settings set --file settings.json     # what `forebay settings show --json` prints
""")


@click.group(name="settings", epilog=EXAMPLES)
def group() -> None:
    """Show or change what all processes of a pool obey."""


@group.command(epilog=SHOW_EXAMPLES)
@redis_options
@pool_option
@json_option
def show(redis_url: str | None, state: Path | None, pool: str | None, as_json: bool) -> None:
    """Show the settings by the names that `set` takes, and the default of those that were changed.

    The epoch counts the changes.
    """
    name, now, epoch = run(_show(named_or_running(redis_url, state), pool))
    if as_json:
        print_json({"pool": name, "epoch": epoch, "settings": now.model_dump(mode="json")})
        return
    default = flat(PoolSettings())
    click.echo(f"pool {name}, epoch {epoch}")
    for key, value in flat(now).items():
        usual = default.get(key, value)
        told = f"  (default {typed(usual)})" if usual != value else ""
        click.echo(f"{key:<26} {typed(value)}{told}")


async def _show(url: str, pool: str | None) -> tuple[str, PoolSettings, int]:
    async with open_pool(url, pool) as library:
        return library.pool, *await Operator(library).settings()


@group.command(name="set", epilog=SET_EXAMPLES)
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON with settings to take over; `classes` in it replaces the whole list. With the pool "
    "and epoch of `settings show --json` in it, it is refused once somebody else changed them.",
)
@redis_options
@pool_option
@json_option
def change(
    changes: tuple[str, ...],
    file: Path | None,
    redis_url: str | None,
    state: Path | None,
    pool: str | None,
    as_json: bool,
) -> None:
    """Change settings and print the difference; all of the changes or none.

    Running processes take the new settings over within seconds: producers within 1, workers
    within 10.
    """
    if not changes and file is None:
        raise click.UsageError("Say what to change: NAME=VALUE, or --file.")
    edit = Edit(changes, *(read_file(file) if file else ({}, None, None)))
    told = run(_change(named_or_running(redis_url, state), pool, edit))
    if as_json:
        print_json(told.facts)
    else:
        click.echo(told.words)


async def _change(url: str, pool: str | None, edit: Edit) -> Told:
    async with open_pool(url, pool) as library:
        operator = Operator(library)
        old, epoch = await operator.settings()
        new = edit.applied(old)
        changed = differences(old, new)
        if changed:
            read_at = edit.epoch if edit.epoch and edit.pool == library.pool else epoch
            epoch = await _store(operator, new, read_at)
        return _told(library.pool, epoch, changed)


async def _store(operator: Operator, new: PoolSettings, epoch: int) -> int:
    try:
        return await operator.change_settings(new, epoch)
    except SettingsChanged as error:
        raise Problem(
            f"somebody else was faster: these changes were made to epoch {epoch}, and {error}. "
            "Nothing was changed; look with `forebay settings show` and try again"
        ) from None
    except ClassInUse as error:
        raise Problem(
            f"{error}, so it cannot go; nothing was changed. "
            "Wait until `forebay status` shows none queued or running in it"
        ) from None


def _told(pool: str, epoch: int, changed: dict[str, tuple[Any, Any]]) -> Told:
    facts = {"pool": pool, "epoch": epoch, "changed": changed}
    if not changed:
        return Told(f"nothing to change: pool {pool} has these settings (epoch {epoch})", facts)
    lines = [f"{name:<26} {typed(old)} → {typed(new)}" for name, (old, new) in changed.items()]
    lines.append(
        f"pool {pool} is at epoch {epoch}; running processes read it within seconds "
        "(producers 1, workers 10)"
    )
    return Told("\n".join(lines), facts)
