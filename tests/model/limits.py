"""A limit that refuses: how much of it is kept for those who return, and when they may.

A refusal uses nothing of what is limited. It books the return, behind those booked before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.model.state import Pool

RETURN_MS = 30_000
"""A refused client counts as one that returns until so long after its booked time."""
LIMITS_MS = 3_600_000
"""Limits of a tenant live so long after their last use."""


@dataclass(frozen=True)
class Item:
    """One request as a producer hands it over."""

    id: str
    class_name: str
    tenant: str
    weight: float = 1
    timeout: float = 600_000
    wire: int = 1
    model: str = "m"
    limit: float = -1
    estimate: float = -1
    stream: int = 0
    progress: int = 0
    detached: int = 0
    idempotency: str = ""
    fingerprint: str = ""
    most: int = 0
    most_bytes: int = 0
    per_minute: float = 0
    tokens_per_minute: float = 0
    head: bytes = b"{}"
    body: bytes = b""


Answer = list[str | int]


@dataclass(frozen=True)
class Limit:
    """A bound in use by `backlog`, emptying at `rate` per ms; `cost` is what a request needs."""

    name: str
    says: str
    bound: float
    backlog: float
    cost: float
    rate: float
    tenant: str = ""


def outstanding(pool: Pool, limit: str) -> dict[str, float]:
    """Who was refused and is expected back."""
    booked = pool.refused.get(limit, {})
    return {who: due for who, due in booked.items() if due >= pool.now - RETURN_MS}


def fits(pool: Pool, limit: Limit, item: Item) -> bool:
    return over(pool, limit, item) <= 0


def over(pool: Pool, limit: Limit, item: Item) -> float:
    """By how much it is too much. A share is kept, for those who were refused before."""
    refused = outstanding(pool, limit.name)
    kept = min(math.floor(limit.bound * pool.settings.kept_share), len(refused))
    if item.fingerprint and item.fingerprint in refused:
        kept = 0
    return limit.backlog + limit.cost - (limit.bound - kept)


def refuse(pool: Pool, limit: Limit, item: Item, target: float) -> Answer:
    """booked := max(booked, now + (backlog - target)/rate) + cost/rate, at most one clamp ahead."""
    reason, clamp = "tenant" if limit.tenant else "full", pool.settings.retry_clamp_ms
    mine = pool.refused.get(limit.name, {}).get(item.fingerprint)
    if item.fingerprint and mine is not None and mine > pool.now:
        return [reason, limit.says, int(mine - pool.now), ""]
    store = pool.limits.get(limit.tenant, {}) if limit.tenant else pool.booked
    turn = store.get(f"booked:{limit.name}", 0)
    if limit.rate > 0:
        turn = max(turn, pool.now + (limit.backlog - target) / limit.rate) + limit.cost / limit.rate
    else:
        turn = pool.now + clamp
    book(pool, limit, item, math.ceil(min(turn, pool.now + clamp)))
    return [reason, limit.says, math.ceil(min(turn, pool.now + clamp)) - int(pool.now), ""]


def book(pool: Pool, limit: Limit, item: Item, turn: int) -> None:
    if limit.tenant:
        pool.limits.setdefault(limit.tenant, {})[f"booked:{limit.name}"] = turn
        pool.expire_at(f"limits:{limit.tenant}", LIMITS_MS)
    else:
        pool.booked[f"booked:{limit.name}"] = turn
    if item.fingerprint:
        pool.refused.setdefault(limit.name, {})[item.fingerprint] = turn
        pool.refused[limit.name] = outstanding(pool, limit.name)
        pool.expire_at(f"refused:{limit.name}", pool.settings.retry_clamp_ms + 60_000)
