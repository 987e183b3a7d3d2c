"""A pool's status as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

SHOWN_WORKERS = 50


def pools_view(pools: Sequence[dict[str, Any]]) -> RenderableType:
    """One block a pool."""
    return Group(*(part for one in pools for part in _pool(one)))


def _pool(one: dict[str, Any]) -> list[RenderableType]:
    parts: list[RenderableType] = [_headline(one), *_switches(one), _classes(one["classes"])]
    if one["workers"]:
        parts.append(_workers(one["workers"]))
    else:
        parts.append(Text("no worker is alive; start one with `forebay work`", style="yellow"))
    parts.append(Text(f"models: {', '.join(one['models']) or 'none known'}"))
    ledger = ", ".join(f"{name} {count:,}" for name, count in sorted(one["ledger"].items()))
    parts.append(Text(f"ledger: {ledger}\n"))
    return parts


def _headline(one: dict[str, Any]) -> Text:
    text = Text(f"pool {one['pool']}", style="bold")
    text.append(
        f"  {one['queued']:,} queued, {one['running']:,} running, {one['per_second']:.1f}/s",
        style="not bold",
    )
    for count, word in ((one["delayed"], "wait for a retry"), (one["dead"], "dead letters")):
        if count:
            text.append(f", {count:,} {word}", style="not bold yellow")
    return text


def _switches(one: dict[str, Any]) -> list[RenderableType]:
    """A line for each switch that keeps the pool from its work: what it does, what ends it."""
    name, told = one["pool"], []
    if one["paused"]:
        told.append(f"PAUSED: workers are given nothing; `forebay resume --pool {name}` ends it")
    if one["draining"]:
        end = f"`forebay drain --pool {name} --end` ends it"
        told.append(f"DRAINING: new requests are refused; {end}")
    return [Text(f" {line} ", style="bold white on red") for line in told]


def _classes(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("class", box=None, pad_edge=False, header_style="dim")
    for name in ("weight", "queued", "running", "oldest wait", "tenants"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["name"],
            "strict" if row["strict"] else f"{row['weight']:g}",
            f"{row['queued']:,}",
            f"{row['running']:,}",
            seconds(row["oldest_ms"] / 1000) if row["queued"] else "–",
            f"{row['flows']:,}",
        )
    return table


def _workers(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("worker", "state", box=None, pad_edge=False, header_style="dim")
    table.add_column("held", justify="right")
    table.add_column("slots", justify="right")
    table.add_column("seen", justify="right")
    for name in ("engine", "host", "models"):
        table.add_column(name)
    for row in rows[:SHOWN_WORKERS]:
        table.add_row(*_worker(row))
    if len(rows) > SHOWN_WORKERS:
        table.caption = f"and {len(rows) - SHOWN_WORKERS:,} more"
    return table


def _worker(row: dict[str, Any]) -> list[str]:
    about = row["about"]
    return [
        row["id"],
        row["state"],
        f"{row['held']:,}",
        f"{row['slots']:,}",
        f"{seconds(row['seen_ms'] / 1000)} ago",
        str(about.get("engine", "")),
        str(about.get("host", "")),
        ", ".join(row["models"]),
    ]


def seconds(value_s: float) -> str:
    """A duration in at most two units."""
    if value_s < 60:
        return f"{value_s:.1f} s"
    minutes, rest_s = divmod(int(value_s), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
