"""`forebay dead purge`: letters are thrown away."""

from __future__ import annotations

from pathlib import Path

import click

from forebay_shared.calls import Letters, Wanted
from forebay_shared.cli.dead_options import wanted_of, wanted_options
from forebay_shared.cli.pools import open_pool, pool_option
from forebay_shared.cli.redis_place import named_or_running, redis_options
from forebay_shared.cli.terminal import Told, example, json_option, print_json, run

EXAMPLES = example("""
  forebay dead purge --older 7d
  forebay dead purge --reason lost --tenant acme --yes
  forebay dead purge --all --yes --json
""")


@click.command(epilog=EXAMPLES)
@wanted_options
@click.option("--all", "every", is_flag=True, help="All of the pool's dead letters.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@redis_options
@pool_option
@json_option
def purge(
    reason: str | None,
    class_name: str,
    tenant: str,
    older_ms: int,
    every: bool,
    yes: bool,
    redis_url: str | None,
    state: Path | None,
    pool: str | None,
    as_json: bool,
) -> None:
    """Throw dead letters away for good, after asking.

    No count of the ledger changes, and results stay for their clients as long as they would.
    """
    wanted = wanted_of(reason, class_name, tenant, older_ms)
    if every == (wanted != Wanted()):
        raise click.UsageError("Say which: --reason, --class, --tenant, --older, or --all alone.")
    if as_json and not yes:
        raise click.UsageError("With --json nobody can be asked: add --yes.")
    told = run(_purge(named_or_running(redis_url, state), pool, wanted, ask=not yes))
    if as_json:
        print_json(told.facts)
    else:
        click.echo(told.words)


async def _purge(url: str, pool: str | None, wanted: Wanted, *, ask: bool) -> Told:
    async with open_pool(url, pool) as library:
        letters = Letters(library)
        newest, count = await _count(letters, wanted)
        what = f"{count:,} dead letter{'' if count == 1 else 's'} of pool {library.pool}"
        if not count:
            return Told(f"nothing to purge: no such dead letter in pool {library.pool}",
                        {"pool": library.pool, "purged": 0})  # fmt: skip
        if ask:
            click.confirm(f"Throw {what} away for good?", abort=True, err=True)
        gone = await letters.purge(wanted, start=newest)  # none that came since they were counted
        return Told(f"purged {gone:,} of pool {library.pool}",
                    {"pool": library.pool, "purged": gone})  # fmt: skip


async def _count(letters: Letters, wanted: Wanted) -> tuple[str, int]:
    """The newest that matches, and how many do."""
    newest, count = "", 0
    async for letter in letters.each(wanted):
        newest, count = newest or letter.entry, count + 1
    return newest, count
