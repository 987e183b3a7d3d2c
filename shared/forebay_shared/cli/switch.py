"""`forebay pause` and `forebay resume`: whether workers are given anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forebay_shared.calls import Operator
from forebay_shared.cli.pools import open_pool, pool_option
from forebay_shared.cli.redis_place import named_or_running, redis_options
from forebay_shared.cli.terminal import example, json_option, print_json, run

PAUSE_EXAMPLES = example("""
  forebay pause
  forebay pause --redis redis://127.0.0.1:6379/0 --pool default
""")
RESUME_EXAMPLES = example("""
  forebay resume
  forebay resume --pool default --json
""")


@click.command(epilog=PAUSE_EXAMPLES)
@redis_options
@pool_option
@json_option
def pause(redis_url: str | None, state: Path | None, pool: str | None, as_json: bool) -> None:
    """Give workers nothing new.

    What runs goes on to its end; new requests are still accepted and wait.
    """
    now = run(_switch(named_or_running(redis_url, state), pool, paused=True))
    if as_json:
        print_json(now)
        return
    click.echo(
        f"pool {now['pool']} is paused: workers are given nothing new, requests are accepted and "
        f"wait; `forebay resume --pool {now['pool']}` ends that"
    )


@click.command(epilog=RESUME_EXAMPLES)
@redis_options
@pool_option
@json_option
def resume(redis_url: str | None, state: Path | None, pool: str | None, as_json: bool) -> None:
    """End a pause: workers are given requests again.

    A pool that drains goes on draining; `forebay drain --pool --end` ends that.
    """
    now = run(_switch(named_or_running(redis_url, state), pool, paused=False))
    if as_json:
        print_json(now)
        return
    click.echo(f"pool {now['pool']} gives requests to workers")
    if now["draining"]:
        click.echo(
            "it drains and refuses new requests; "
            f"`forebay drain --pool {now['pool']} --end` ends that"
        )


async def _switch(url: str, pool: str | None, paused: bool) -> dict[str, Any]:
    async with open_pool(url, pool) as library:
        operator = Operator(library)
        await operator.switch(paused=paused)
        return switches(library.pool, await operator.status())


def switches(pool: str, status: dict[str, Any]) -> dict[str, Any]:
    """What of a pool's status the commands tell that switch it."""
    names = ("paused", "draining", "queued", "running")
    return {"pool": pool} | {name: status[name] for name in names}
