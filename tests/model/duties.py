"""What time makes due (sweep), the registry, and the passing of time itself."""

from __future__ import annotations

import json

from tests.model import fair, places
from tests.model.state import Pool, Request, Worker

EACH = 3
"""Requests of each kind that one call ends or moves at most."""


def sweep(pool: Pool, forced: bool = False) -> list[int]:
    if not forced:
        since = pool.now - (pool.swept or 0)
        if 0 <= since < int(pool.settings.sweep_ms * 0.9):
            return []
        pool.swept = pool.now
        places.seen(pool)
    expired = _due([(one.deadline, one) for one in pool.live()], pool.now)
    for one in expired:
        places.close(pool, one, "expired", "deadline")
    delayed = [(one.due, one) for one in pool.live() if one.place == "delayed"]
    retried = _due(delayed, pool.now)
    for one in retried:
        places.queue_again(pool, one, places.home(one))
    reclaimed, full = _slow_part(pool, forced)
    for settings in pool.settings.classes:
        if not forced and pool.class_state(settings.name).tags.a is not None:
            pool.ring(settings.name)
    again = full or EACH in (len(expired), len(retried))
    return [len(expired), len(retried), reclaimed, 0, int(again)]


def _due(rows: list[tuple[float, Request]], now: float) -> list[Request]:
    due = [(when, one.id, one) for when, one in rows if when <= now]
    return [one for _, _, one in sorted(due, key=lambda row: row[:2])][:EACH]


def _slow_part(pool: Pool, forced: bool) -> tuple[int, bool]:
    since = None if pool.reclaimed is None else pool.now - pool.reclaimed
    if not forced and since is not None and 0 <= since < pool.settings.reclaim_ms:
        return 0, False
    may = pool.now >= pool.quiet
    pool.gaps = 0 if may else pool.gaps
    reclaimed = _reclaim(pool) if may else 0
    full = may and reclaimed == EACH
    if not forced:
        pool.reclaimed = pool.reclaimed if full else pool.now
        _forget(pool)
    return reclaimed, full


def _reclaim(pool: Pool) -> int:
    running = [(one.lease_end, one) for one in pool.live() if one.state == "running"]
    due = _due(running, pool.now)
    for one in due:
        places.crash(pool, one)
    return len(due)


def _forget(pool: Pool) -> None:
    """Tags that say nothing, workers that are silent, models that nobody serves any more."""
    for name, state in pool.classes.items():
        for tenant in list(state.flows):
            fair.forget_flow(pool, name, tenant)
    silent = pool.now - pool.settings.worker_ttl_ms
    for worker in [name for name, seen in pool.registry.items() if seen <= silent]:
        leave(pool, worker)
    unknown = pool.now - pool.settings.known_model_ms
    pool.models = {name: seen for name, seen in pool.models.items() if seen > unknown}


def register(
    pool: Pool,
    worker: str,
    state: str,
    slots: int,
    held: int,
    classes: list[str],
    models: list[str],
) -> int:
    known = pool.workers.setdefault(worker, Worker())
    known.about = {
        "state": state, "slots": slots, "held": held, "classes": json.dumps(classes),
        "about": "{}", "models": models, "seen": pool.now,
    }  # fmt: skip
    pool.expire_at(f"worker:{worker}", 10 * pool.settings.worker_ttl_ms)
    pool.registry[worker] = pool.now
    pool.models |= dict.fromkeys(models, pool.now)
    _count_slots(pool)
    return pool.epoch


def leave(pool: Pool, worker: str) -> str:
    pool.registry.pop(worker, None)
    pool.workers.pop(worker, None)
    pool.control.pop(worker, None)
    pool.grants.pop(worker, None)
    for key in ("worker", "control", "grant"):
        pool.expires.pop(f"{key}:{worker}", None)
    _count_slots(pool)
    return "ok"


def _count_slots(pool: Pool) -> None:
    abouts = (pool.workers[name].about for name in pool.registry if name in pool.workers)
    pool.slots = sum(float(str(about["slots"])) for about in abouts if about)


# Time ---------------------------------------------------------------------------------------------


def pass_time(pool: Pool, ms: float) -> list[str]:
    """Moves the clock; the keys whose TTL ended on the way, which are gone now."""
    pool.now += ms
    due = [(when, key) for key, when in pool.expires.items() if when <= pool.now]
    gone = [key for _, key in sorted(due)]
    for key in gone:
        del pool.expires[key]
        _drop(pool, *key.partition(":")[::2])
    return gone


def _drop(pool: Pool, kind: str, name: str) -> None:
    stores: dict[str, dict[str, object]] = {
        "request": pool.requests, "idempotency": pool.idempotency, "control": pool.control,
        "grant": pool.grants, "worker": pool.workers, "limits": pool.limits,
        "usage": pool.usage, "refused": pool.refused, "requeues": pool.requeues,
    }  # type: ignore[dict-item]  # fmt: skip
    if kind in stores:
        stores[kind].pop(name, None)
    elif kind == "result":
        pool.requests[name].result = None
    elif kind == "prompt" and name in pool.requests:
        pool.requests[name].prompt = b""
    elif kind == "output" and name in pool.requests:
        pool.requests[name].chunks, pool.requests[name].end_mark = [], False
