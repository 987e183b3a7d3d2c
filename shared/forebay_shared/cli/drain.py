"""`forebay drain`: end a worker in order, or let a whole pool run dry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forebay_shared.cli.drain_pool import STOPPED_POOL, drain_pool, end_drain
from forebay_shared.cli.drain_worker import STOPPED_WORKER, drain_worker
from forebay_shared.cli.redis_place import named_or_running, redis_options
from forebay_shared.cli.terminal import example, json_option, print_json, run

EXAMPLES = example("""
  forebay drain WORKER              # the ids are in `forebay status`
  forebay drain --pool              # the only pool, or name it: --pool default
  forebay drain --pool --no-wait
  forebay drain --pool --end        # accept requests again
""")


@click.command(epilog=EXAMPLES)
@click.argument("worker", required=False)
@redis_options
@click.option(
    "--pool",
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="Drain this pool, or the only one; with WORKER the pool where the worker is.",
)
@click.option("--end", is_flag=True, help="End the draining of the pool.")
@click.option("--wait/--no-wait", default=True, help="Wait until it has drained.  [default: wait]")
@json_option
def drain(
    worker: str | None,
    redis_url: str | None,
    state: Path | None,
    pool: str | None,
    **rest: Any,
) -> None:
    """Drain a worker: it takes nothing new, finishes what runs within its grace, and leaves.

    With --pool and no WORKER, drain the pool: new requests are refused with a time to come back,
    what was accepted runs to its end. That lasts until --end.
    """
    _require_sense(worker, pool, rest["end"])
    url = named_or_running(redis_url, state)
    if worker is not None:
        told = run(drain_worker(url, worker, pool or None, rest["wait"]), STOPPED_WORKER)
    elif rest["end"]:
        told = run(end_drain(url, pool or None))
    else:
        told = run(drain_pool(url, pool or None, rest["wait"]), STOPPED_POOL)
    if rest["as_json"]:
        print_json(told.facts)
    else:
        click.echo(told.words)


def _require_sense(worker: str | None, pool: str | None, end: bool) -> None:
    if worker is None and pool is None:
        raise click.UsageError("Name a WORKER, or say --pool to drain a whole pool.")
    if worker is not None and end:
        raise click.UsageError("--end is for pools: a worker that drains cannot be kept.")
