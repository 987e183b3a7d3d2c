"""Moves of a request between its places, and its end."""

from __future__ import annotations

import math

from tests.model import fair
from tests.model.state import Letter, Pool, Request, Result

KEPT = {
    "flow_weight": "flow_weight",
    "timeout": "timeout",
    "wire": "wire",
    "model": "model",
    "limit": "limit",
    "estimate": "estimate",
    "stream": "stream",
    "progress": "progress",
}
"""What a dead letter keeps of its request beside head and body."""


def own_result(state: str, reason: str) -> Result:
    """The record of an end that the library decides itself."""
    return {"state": state, "reason": reason}, b""


def note_used(pool: Pool, one: Request, usage: tuple[float, float, float]) -> None:
    one.used = max(one.used, fair.cost(pool, *usage))


def leave_queue(pool: Pool, one: Request) -> None:
    """The request leaves the place in which it was queued: drain, but shed or for a second time."""
    one.place, one.due = "", 0
    if one.reason == "shed" or one.takes:
        return
    for limit in ("pool", f"class:{one.class_name}"):
        fair.drained(pool, limit)


def leave_running(pool: Pool, one: Request) -> None:
    assert one.lease is not None
    worker = pool.workers.get(one.lease[0])
    if worker:
        worker.suspects.pop(one.id, None)
        forget_empty(pool, one.lease[0])
    fair.note_left(pool)
    one.lease_end = 0


def forget_empty(pool: Pool, name: str) -> None:
    """Redis drops a hash with its last field."""
    worker = pool.workers[name]
    if worker.about is None and not worker.suspects:
        del pool.workers[name]
        pool.expires.pop(f"worker:{name}", None)


def queue_again(pool: Pool, one: Request, place: str, due: float = 0) -> None:
    """Into a queued place; entry, and so arrival, stay."""
    one.state, one.place, one.lease, one.due = "queued", place, None, due
    fair.activate(pool, one.class_name)
    if place != "delayed":
        pool.ring(one.class_name)


def home(one: Request) -> str:
    return "suspect" if one.crashes else "returned"


def give_back(pool: Pool, one: Request, place: str, due: float = 0) -> None:
    """What was used is charged, the rest is refunded."""
    leave_running(pool, one)
    fair.settle(pool, one, one.used)
    queue_again(pool, one, place, due)
    pool.notify(one)


def seen(pool: Pool) -> None:
    """Somebody sweeps or renews: whoever ends a gap begins the quiet, three times in a row.

    A gap is longer than 3 ticks or a third of a lease, or goes backwards.
    """
    last, pool.seen = pool.seen, pool.now
    gap = math.inf if last is None else pool.now - last
    if 0 <= gap <= min(3 * pool.settings.sweep_ms, pool.settings.lease_ms / 3):
        return
    end = pool.now + pool.settings.lease_ms
    pool.quiet = end if pool.gaps < 3 else min(end, pool.quiet)
    pool.gaps = min(3, pool.gaps + 1)


def crash(pool: Pool, one: Request) -> None:
    one.crashes += 1
    one.solos += one.solo
    if one.solos >= pool.settings.solo_crashes:
        one.reason = "crash_loop"
        end(pool, one, "dead", own_result("dead", "crash_loop"))
    else:
        give_back(pool, one, "suspect")


def bury(pool: Pool, one: Request) -> None:
    meta = {name: str(getattr(one, held)) for name, held in KEPT.items()}
    letter = Letter(
        one.id, one.reason, one.class_name, one.tenant, pool.now, meta, one.head, one.body
    )
    pool.dead.append(letter)
    limits = pool.settings
    while len(pool.dead) > 1 and (
        len(pool.dead) > limits.dead_count
        or sum(kept.size for kept in pool.dead) > limits.dead_bytes
    ):
        pool.dead.pop(0)


def end(pool: Pool, one: Request, state: str, result: Result) -> None:
    """The only way into a terminal state."""
    if state == "dead":
        bury(pool, one)
    if one.state == "running":
        leave_running(pool, one)
        fair.settle(pool, one, one.used)
    else:
        leave_queue(pool, one)
    one.state, one.ended, one.result = state, pool.now, result
    keep_for_readers(pool, one)
    fair.activate(pool, one.class_name)
    fair.forget_flow(pool, one.class_name, one.tenant)
    fair.rest(pool, one.class_name)
    pool.ledger[state] += 1
    pool.notify(one)


def keep_for_readers(pool: Pool, one: Request) -> None:
    """Lives of record, result, output and Idempotency-Key from the end on."""
    limits = pool.settings
    pool.expire_at(f"result:{one.id}", limits.result_ttl_ms)
    pool.expire_at(f"request:{one.id}", limits.result_ttl_ms + limits.tombstone_ms)
    if one.stream or one.offset:
        one.end_mark = True
        one.prompt = b""
        pool.expire_at(f"output:{one.id}", limits.result_ttl_ms)
    if one.idempotency and _is_final(one):
        pool.expire_at(f"idempotency:{one.idempotency}", limits.idempotency_ttl_ms)
    elif one.idempotency:
        pool.idempotency.pop(one.idempotency, None)


def _is_final(one: Request) -> bool:
    """Whether a repeat would end in the same way: then its Idempotency-Key is kept."""
    if one.state != "failed" or one.result is None:
        return one.state == "done"
    head = one.result[0]
    status = head.get("status", 0)
    refused = isinstance(status, int) and 400 <= status < 500
    return refused or head.get("reason") == "result_too_large"


def close(pool: Pool, one: Request, state: str, reason: str) -> None:
    """An end that the library decides; a worker that runs the request is told."""
    if one.state == "running":
        assert one.lease is not None
        worker, call = one.lease
        pool.order(worker, f"cancel {one.id} {call}")
    one.reason = reason
    end(pool, one, state, own_result(state, reason))
