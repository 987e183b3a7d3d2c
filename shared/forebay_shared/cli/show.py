"""`forebay show`: one request as its owner may see it."""

from __future__ import annotations

import json
from typing import Any

import click

from forebay_shared.cli.api import Place, Producer, place_options
from forebay_shared.cli.terminal import example, json_option, print_json, run
from forebay_shared.records import TERMINAL

WAIT_S = 30
WHY_IT_WAITS = {
    "slot": "for a free slot of a worker",
    "worker": "for a worker: none is alive",
    "paused": "until the pool is resumed: it is paused",
    "retry": "for its next attempt: the engine failed",
    "suspect": "to run alone: workers died while they ran it",
}
EXAMPLES = example("""
  forebay show default.01JDX3M8Q5T2V9W7Y4Z6A1B0CD
  forebay show --wait --json ID
""")


@click.command(epilog=EXAMPLES)
@click.argument("request_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait for the end; exit code 1 if it is not a good one.")
@place_options
@json_option
def show(request_id: str, wait: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Show the request ID: state, class, place in the queue, why it waits, result."""
    shown = run(_show(Place(url, api_key), request_id, wait))
    if as_json:
        print_json(shown)
    else:
        _print(shown)
    if wait and shown["state"] != "done":
        raise click.exceptions.Exit(1)


async def _show(place: Place, request_id: str, wait: bool) -> dict[str, Any]:
    path = request_path(request_id) + (f"?wait={WAIT_S}" if wait else "")
    async with Producer(place) as producer:
        while True:
            shown = (await producer.call("GET", path)).record("id", "state", "class")
            if not wait or shown["state"] in TERMINAL:
                return shown


def request_path(request_id: str) -> str:
    """The request's path. Raises UsageError where the id could not be one of ours."""
    from forebay_shared.ids import pool_of

    if pool_of(request_id) is None:
        raise click.UsageError(
            f"{request_id!r} is not an id of a request; `forebay submit --async` and the header "
            "x-request-id tell them"
        )
    return f"/v1/requests/{request_id}"


def _print(shown: dict[str, Any]) -> None:
    for name, value in _rows(shown):
        click.echo(f"{name:<9} {value}")
    if result := shown.get("result"):
        click.echo(f"\n{_result_text(result['body'])}")


def _rows(shown: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("id", shown["id"]), ("state", shown["state"]), ("class", shown["class"])]
    rows.append(("model", shown["model"]))
    if shown.get("rank") is not None:
        rows.append(("place", f"{shown['rank'] + 1:,} in its class, by arrival"))
    if why := shown.get("waits_for"):
        rows.append(("waits", WHY_IT_WAITS.get(why, f"for {why}")))
    if shown["attempts"] or shown["crashes"]:
        rows.append(("failures", f"{shown['attempts']} attempts, {shown['crashes']} crashes"))
    return rows + _times(shown)


def _times(shown: dict[str, Any]) -> list[tuple[str, str]]:
    admitted_s, started_s = shown["admitted_at"], shown["started_at"]
    ended_s, now_s = shown["ended_at"], shown["now"]
    rows = []
    queued_until_s = started_s or ended_s or now_s
    rows.append(("queued", f"{queued_until_s - admitted_s:.1f} s"))
    if started_s:
        rows.append(("ran", f"{(ended_s or now_s) - started_s:.1f} s"))
    if not ended_s and shown["deadline_at"]:
        rows.append(("deadline", f"in {shown['deadline_at'] - now_s:.0f} s"))
    return rows


def _result_text(body: Any) -> str:
    """The answer's text where it has one, the error's message where it is one, else the JSON."""
    try:
        if "error" in body:
            return str(body["error"]["message"])
        first = body["choices"][0]
        return str(first["message"]["content"] if "message" in first else first["text"])
    except (KeyError, IndexError, TypeError):
        return json.dumps(body, ensure_ascii=False, indent=2)
