"""`forebay cancel`: end a request early."""

from __future__ import annotations

from typing import Any

import click

from forebay_shared.cli.api import Place, Producer, place_options
from forebay_shared.cli.show import request_path
from forebay_shared.cli.terminal import Problem, example, json_option, print_json, run

EXAMPLES = example("""
  forebay cancel default.01JDX3M8Q5T2V9W7Y4Z6A1B0CD
""")


@click.command(epilog=EXAMPLES)
@click.argument("request_id", metavar="ID")
@place_options
@json_option
def cancel(request_id: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Cancel the request ID, whether it waits or runs.

    A request that has ended keeps its state; that is told, with exit code 1.
    """
    now = run(_cancel(Place(url, api_key), request_path(request_id)))
    if as_json:
        print_json(now)
    if now["state"] != "cancelled":
        raise Problem(f"the request has ended before: it is {now['state']}")
    if not as_json:
        click.echo("cancelled")


async def _cancel(place: Place, path: str) -> dict[str, Any]:
    async with Producer(place) as producer:
        return (await producer.call("DELETE", path)).record("state")
