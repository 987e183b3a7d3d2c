"""The whole stored state that a pool of the oracle stands for, key by key, in a normal form.

Keys stand without the pool's prefix. Values: numbers as floats, texts as str, payloads as bytes;
hashes and sorted sets as dicts; a queue as its entries, pending rows and consumers.
"""

from __future__ import annotations

from typing import Any

from tests.model import fair
from tests.model.places import KEPT
from tests.model.state import Pool, Request

Normal = dict[str, Any]

FORESTALLED = (
    "state", "place", "class", "tenant", "bucket", "entry", "lease", "model", "stream", "watchers",
    "offset", "takes", "attempts", "crashes", "admitted", "taken", "ended", "deadline",
)  # fmt: skip
"""What is stored of a request that was cancelled before it came."""

OWNER = {"returned": "@returned", "delayed": "@delayed", "suspect": "@suspect"}


def stored(pool: Pool) -> Normal:
    """Every key that must exist, with its value; nothing else may."""
    state: Normal = {
        "layout": "1",
        "settings": {"json": pool.settings.model_dump(mode="json"), "epoch": pool.epoch},
        "ledger": {name: count for name, count in pool.ledger.items() if count},
        "clock": _clock(pool),
        "flows": {f"{one.class_name}:{one.tenant}": 0 for one in pool.live()},
        "leases": {one.id: one.lease_end for one in pool.live() if one.state == "running"},
        "delayed": {one.id: one.due for one in pool.live() if one.place == "delayed"},
        "deadlines": {one.id: one.deadline for one in pool.live()},
        "workers": dict(pool.registry),
        "models": dict(pool.models),
        "dead": [_letter(letter) for letter in pool.dead],
    }
    for name in pool.classes:
        state |= _class(pool, name)
    for one in pool.requests.values():
        state |= _request(pool, one)
    state |= _queues(pool) | _around(pool)
    return {key: value for key, value in state.items() if value or key == "ledger"}


def lives(pool: Pool, state: Normal) -> set[str]:
    """Which of the keys have a TTL."""
    return {key for key in pool.expires if key in state}


def _clock(pool: Pool) -> dict[str, Any]:
    clock: dict[str, Any] = {
        "v": pool.v, "n": pool.last_entry, "queued": pool.queued(), "running": pool.running(),
        "slots": pool.slots, "lmax": pool.lmax, "held": fair.held(pool),
        "most_held": pool.most_held, "swept": pool.swept,
        "reclaimed": pool.reclaimed, "quiet": pool.quiet, "seen": pool.seen,
        "gaps": pool.gaps, "paused": pool.paused,
        "draining": pool.draining, "bytes": _never_taken_bytes(pool),
        "dead_bytes": sum(one.size for one in pool.dead),
    }  # fmt: skip
    for limit, rate in pool.rates.items():
        clock |= {
            f"rate:{limit}": rate.value,
            f"rated:{limit}": rate.at,
            f"since:{limit}": rate.since,
        }
    clock |= pool.means | pool.booked
    for name, state in pool.classes.items():
        clock[f"queued:{name}"], clock[f"running:{name}"] = pool.queued(name), pool.running(name)
        clock[f"v:{name}"] = state.v
    clock = {field: float(value) for field, value in clock.items() if value}
    for name, state in pool.classes.items():
        tags = {f"a:{name}": state.tags.a, f"F:{name}": state.tags.f}
        clock |= {field: tag for field, tag in tags.items() if tag is not None}
    return clock


def _never_taken_bytes(pool: Pool) -> int:
    return sum(one.bytes for one in pool.live() if one.state == "queued" and one.place == "waiting")


def _class(pool: Pool, name: str) -> Normal:
    state = pool.classes[name]
    queued = [one for one in pool.live(name) if one.state == "queued"]
    waiting = [one for one in queued if one.place == "waiting"]
    returned = [one for one in queued if one.place == "returned"]
    active = {tenant: tags for tenant, tags in state.flows.items() if tags.a is not None}
    flows = {f"{name}:{tenant}": tags for tenant, tags in state.flows.items()}
    return {
        f"ready:{name}": {f"{name}:{tenant}": fair.start(tags) for tenant, tags in active.items()},
        f"starts:{name}": {f"{name}:{tenant}": tags.a for tenant, tags in active.items()},
        f"tags:{name}": {flow: tags.f for flow, tags in flows.items() if tags.f is not None},
        f"waiting:{name}": {one.id: one.entry for one in waiting + returned},
        f"suspects:{name}": _suspects(queued),
        f"depth:{name}": _by_flow(waiting, lambda one: 1),
        f"sizes:{name}": _by_flow(waiting, lambda one: one.bytes),
        f"returned:{name}": _by_flow(returned, lambda one: 1),
    }


def _suspects(queued: list[Request]) -> dict[str, int]:
    suspects = [one for one in queued if one.place == "suspect"]
    return {f"{one.entry:016d}|{one.id}": 1000 * one.wire + one.crashes for one in suspects}


def _by_flow(requests: list[Request], amount: Any) -> dict[str, int]:
    sums: dict[str, int] = {}
    for one in requests:
        flow = f"{one.class_name}:{one.tenant}"
        sums[flow] = sums.get(flow, 0) + amount(one)
    return sums


def _request(pool: Pool, one: Request) -> Normal:
    """Record, result and output of one request."""
    lease = f"{one.lease[0]}/{one.lease[1]}" if one.lease else ""
    record: dict[str, Any] = {
        "state": one.state, "place": one.place, "class": one.class_name, "tenant": one.tenant,
        "bucket": 0, "entry": one.entry, "lease": lease, "wire": one.wire, "model": one.model,
        "limit": one.limit, "estimate": one.estimate, "stream": one.stream,
        "progress": one.progress, "detached": one.detached, "bytes": one.bytes,
        "timeout": one.timeout,
        "flow_weight": one.flow_weight, "weight": one.class_weight, "charged": one.charged,
        "used": one.used, "takes": one.takes, "attempts": one.attempts, "crashes": one.crashes,
        "solos": one.solos, "solo": int(one.solo), "offset": one.offset,
        "output": one.output_bytes, "watchers": ",".join(one.watchers), "admitted": one.admitted,
        "taken": one.taken, "ended": one.ended, "deadline": one.deadline, "reason": one.reason,
        "idempotency": one.idempotency,
    }  # fmt: skip
    if one.forestalled:
        record = {name: record[name] for name in FORESTALLED}
    if one.retry_of is not None:
        record["retry_of"] = one.retry_of
    output: list[Any] = [(n, *chunk) for n, chunk in enumerate(one.chunks, 1)]
    if one.end_mark:
        output.append((one.offset + 1, "end", one.state, one.offset))
    return {
        f"request:{one.id}": record,
        f"result:{one.id}": one.result,
        f"output:{one.id}": output,
        f"prompt:{one.id}": one.prompt,
    }


def _queues(pool: Pool) -> Normal:
    queues: Normal = {}
    for one in pool.live():
        fresh: Normal = {"entries": [], "rows": {}, "consumers": set()}
        queue = queues.setdefault(f"queue:{one.class_name}:{one.tenant}:0", fresh)
        queue["entries"].append((one.entry, one.id, one.wire, one.head, one.body))
        owner = one.lease[0] if one.state == "running" and one.lease else OWNER.get(one.place)
        if owner:
            queue["rows"][one.entry] = owner
            queue["consumers"].add(owner)
    return queues


def _around(pool: Pool) -> Normal:
    """Keys of clients: bells, lists, registry, limits."""
    around: Normal = {f"bell:{name}": count for name, count in pool.bells.items()}
    around |= {f"control:{name}": orders for name, orders in pool.control.items()}
    around |= {f"grant:{name}": [call, *ids] for name, (call, ids) in pool.grants.items()}
    around |= {f"usage:{tenant}": dict(known) for tenant, known in pool.usage.items()}
    around |= {f"refused:{limit}": dict(who) for limit, who in pool.refused.items()}
    around |= {f"inbox:{name}": list(ids) for name, ids in pool.inboxes.items()}
    around |= {f"idempotency:{name}": "|".join(v) for name, v in pool.idempotency.items()}
    around |= {f"requeues:{name}": float(number) for name, number in pool.requeues.items()}
    around |= {f"limits:{tenant}": dict(known) for tenant, known in pool.limits.items()}
    for name, worker in pool.workers.items():
        suspects = {f"suspect:{one}": crashes for one, crashes in worker.suspects.items()}
        around[f"worker:{name}"] = (worker.about or {}) | suspects
    return around


def _letter(letter: Any) -> dict[str, Any]:
    meta = {name: number(letter.meta[name]) for name in KEPT if name in letter.meta}
    return {
        "id": letter.id, "reason": letter.reason, "class": letter.class_name,
        "tenant": letter.tenant, "at": letter.at, "size": letter.size, "meta": meta,
        "head": letter.head, "body": letter.body,
    }  # fmt: skip


def number(text: str) -> float | str:
    """A number where the text is one."""
    try:
        return float(text)
    except ValueError:
        return text
