"""The fairness rule, from its statement: who is next, and what each is charged.

Symbols: a activation tag, F finish tag, S = max(a, F) start tag, v virtual time of the level, w
weight, e what a request is expected to cost, u what it used. Classes share the pool, flows
(tenants) share their class.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from tests.model.state import ClassState, Pool, Rate, Request, Tags

COLD_OUTPUT, COLD_RATIO, LEARN = 256, 0.25, 0.1
AVERAGE_MS, YOUNG_MS = 30_000, 1_000
BURST = 2
"""A strict class goes first while it is at most so many l_max ahead of its share."""


def start(tags: Tags) -> float:
    known = [tag for tag in (tags.a, tags.f) if tag is not None]
    return max(known) if known else 0.0


# What a request costs ---------------------------------------------------------------------------


def cost(pool: Pool, prompt: float, cached: float, output: float) -> float:
    price = pool.settings.cost
    known = min(cached, prompt)
    return (prompt - known) * price.prompt + known * price.cached + output * price.output


def expected(pool: Pool, one: Request) -> float:
    """e: prompt by bytes, output as told, or learned and capped by what the request allows."""
    learned = pool.usage.get(one.tenant, {})
    output = one.estimate
    if output < 0:
        usual = pool.means.get(f"output:{one.class_name}", COLD_OUTPUT)
        output = learned.get(f"output:{one.class_name}:{one.model}", usual)
        if one.limit >= 0:
            output = min(output, one.limit)
    ratio = learned.get(f"ratio:{one.model}", pool.means.get("ratio", COLD_RATIO))
    return cost(pool, one.bytes * ratio, 0, output)


def learn(pool: Pool, one: Request, prompt: float, output: float) -> None:
    """Averages of the pool, the class, and the flow by model; totals of the tenant."""
    ratio = prompt / max(1, one.bytes)
    _average(pool.means, "ratio", ratio)
    if output > 0:
        _average(pool.means, f"output:{one.class_name}", output)
    known = pool.usage.setdefault(one.tenant, {})
    _average(known, f"ratio:{one.model}", ratio)
    _average(known, f"output:{one.class_name}:{one.model}", output)
    for name, more in (("requests", 1), ("prompt", prompt), ("output", output)):
        known[name] = known.get(name, 0) + more
    pool.expire_at(f"usage:{one.tenant}", 35 * 86_400_000)


def _average(means: dict[str, float], name: str, seen: float) -> None:
    was = means.get(name, seen)
    means[name] = was + LEARN * (seen - was)


# Who waits --------------------------------------------------------------------------------------


def activate(pool: Pool, class_name: str) -> None:
    """Who begins to wait gets a := v, who stops waiting has no a. Called after each move."""
    state = pool.class_state(class_name)
    queued = [one for one in pool.live(class_name) if one.state == "queued"]
    takeable = {one.tenant for one in queued if one.takeable}
    for tenant in takeable:
        tags = pool.flow_tags(class_name, tenant)
        tags.a = state.v if tags.a is None else tags.a
    for tenant, tags in state.flows.items():
        tags.a = tags.a if tenant in takeable else None
    if not takeable and not any(one.place == "suspect" for one in queued):
        state.tags.a = None
    elif state.tags.a is None:
        state.tags.a = pool.v


@dataclass
class Contender:
    """A class that waits."""

    state: ClassState
    strict: bool
    weight: float

    @property
    def start(self) -> float:
        return start(self.state.tags)


def contenders(pool: Pool) -> list[Contender]:
    """The waiting classes by rank. A strict one weighs cap/(1 − cap) × the others that wait."""
    waiting = [
        one for one in pool.settings.classes if pool.class_state(one.name).tags.a is not None
    ]
    others = sum(one.weight for one in waiting if not one.strict)
    others = others or sum(one.weight for one in pool.settings.classes if not one.strict) or 1
    return [
        Contender(
            pool.class_state(one.name),
            one.strict,
            one.cap / (1 - one.cap) * others if one.strict else one.weight,
        )
        for one in waiting
    ]


def choose(
    pool: Pool, waiting: list[Contender], eligible: Collection[str]
) -> tuple[Contender | None, bool]:
    """Whose turn it is, and whether a strict class took it under its cap."""
    able = [one for one in waiting if one.state.name in eligible]
    for one in able:
        if one.strict and one.start <= pool.v + BURST * pool.lmax / one.weight:
            return one, True
    return min(able, key=lambda one: one.start, default=None), False


def bound_windup(
    pool: Pool, waiting: list[Contender], eligible: Collection[str], chosen: Contender
) -> None:
    """No hoarded credit of the chosen, no hoarded debt of the others.

    Where all could be chosen all along, another party is ahead of the smallest S by its own last
    charge at most, a strict one also by its burst, and by refunds of those in service.
    """
    able = [one for one in waiting if one.state.name in eligible]
    others = [one for one in able if one is not chosen]
    if not others:
        return
    refunds = pool.most_held / sum(one.weight for one in able)
    steps = [(1 + BURST * one.strict) * pool.lmax / one.weight for one in others]
    floor = min(one.start - step for one, step in zip(others, steps, strict=True)) - refunds
    if floor > chosen.start:
        chosen.state.tags.a = floor
    for one, step in zip(others, steps, strict=True):
        most, tags = chosen.start + refunds + step, one.state.tags
        if tags.a is not None:
            tags.a = min(tags.a, most)
        if tags.f is not None:
            tags.f = min(tags.f, most)


# Charging ---------------------------------------------------------------------------------------


def charge_class(
    pool: Pool, waiting: list[Contender], chosen: Contender, strict: bool, add: float
) -> None:
    """F := S + add/w; v follows a pick that was the smallest S and not a strict one."""
    at = chosen.start
    behind = any(one.start < at for one in waiting)
    chosen.state.tags.f = at + add / chosen.weight
    if not strict and not behind:
        pool.v = max(pool.v, at)


def charge_flow(pool: Pool, one: Request, add: float, in_order: bool) -> None:
    """The same for the flow. A suspect is served beside the order: its flow may not be in it."""
    state, tags = pool.class_state(one.class_name), pool.flow_tags(one.class_name, one.tenant)
    at = start(tags) if tags.a is not None else max(state.v, tags.f or 0)
    tags.f = at + add / one.flow_weight
    if in_order:
        state.v = max(state.v, at)


def settle(pool: Pool, one: Request, used: float) -> None:
    """F += (used − charged)/w on both levels, with the weights of the charge."""
    owed, one.charged = used - one.charged, used
    if owed == 0:
        return
    state, tags = pool.class_state(one.class_name), pool.flow_tags(one.class_name, one.tenant)
    was = pool.v if state.tags.f is None else state.tags.f
    state.tags.f = was + owed / one.class_weight
    tags.f = (state.v if tags.f is None else tags.f) + owed / one.flow_weight


def note_held(pool: Pool, length: float) -> None:
    """More is charged to those in service: l_max, and K, the most they were charged together."""
    pool.lmax = max(pool.lmax, length)
    pool.most_held = max(pool.most_held, held(pool))


def note_left(pool: Pool) -> None:
    """One left the service: both maxima fade."""
    pool.lmax, pool.most_held = pool.lmax * 0.999, pool.most_held * 0.999


def held(pool: Pool) -> float:
    return sum(one.charged for one in pool.live() if one.state == "running")


def forget_flow(pool: Pool, class_name: str, tenant: str) -> None:
    """A flow with nothing left whose F is not above v says nothing any more."""
    state = pool.class_state(class_name)
    tags = state.flows.get(tenant)
    gone = not any(pool.live(class_name, tenant))
    if tags and gone and tags.f is not None and tags.f <= state.v:
        tags.f = None


def rest(pool: Pool, class_name: str) -> None:
    """Nothing queued or running: v goes past the highest tag, the tags go. Likewise the pool."""
    if any(pool.live(class_name)):
        return
    state = pool.class_state(class_name)
    tags = [one.f for one in state.flows.values() if one.f is not None]
    state.v = max([state.v, *tags])
    state.flows.clear()
    if (state.tags.f or 0) <= pool.v:
        state.tags.f = None
    if any(pool.live()):
        return
    for one in pool.settings.classes:
        other = pool.class_state(one.name)
        pool.v = max(pool.v, other.tags.f or 0)
        other.tags.f = None


# Drain rates ------------------------------------------------------------------------------------


def _faded(pool: Pool, rate: Rate) -> float:
    return rate.value * math.exp(-max(0, pool.now - rate.at) / AVERAGE_MS)


def drained(pool: Pool, limit: str) -> None:
    """One left the queue of this limit."""
    rate = pool.rates.get(limit) or Rate(0, pool.now, pool.now)
    value = _faded(pool, rate) + 1 / AVERAGE_MS
    pool.rates[limit] = Rate(value, pool.now, rate.since)


def drain_rate(pool: Pool, limit: str) -> float:
    """Per ms, corrected for the average's own youth."""
    rate = pool.rates.get(limit)
    if rate is None:
        return 0
    return _faded(pool, rate) / (1 - math.exp(-max(YOUNG_MS, pool.now - rate.since) / AVERAGE_MS))
