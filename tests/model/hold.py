"""What a worker says of what it holds: renew, emit, finish, release."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.model import fair, places
from tests.model.state import Pool, Request, Result
from tests.model.take import held

Usage = tuple[float, float, float]
Chunks = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Held:
    """A request that the worker believes to hold, and the tokens used so far."""

    id: str
    call: int
    usage: Usage = (0, 0, 0)


@dataclass(frozen=True)
class Emission:
    """New chunks of one request; `offset` came before them."""

    id: str
    call: int
    offset: int
    usage: Usage = (0, 0, 0)
    chunks: Chunks = ()


@dataclass(frozen=True)
class Ending:
    """How a request ended, by its worker."""

    id: str
    call: int
    state: str
    reason: str
    usage: Usage
    head: dict[str, object]
    body: bytes
    offset: int = 0
    chunks: Chunks = ()

    @property
    def result(self) -> Result:
        return self.head, self.body


@dataclass(frozen=True)
class Release:
    """A request that the worker gives back."""

    id: str
    call: int
    blame: str
    jitter: float
    usage: Usage
    reason: str
    head: dict[str, object]
    body: bytes


def renew(pool: Pool, worker: str, items: list[Held]) -> list[str]:
    if items:
        places.seen(pool)
    return [_renew(pool, held(pool, item.id, worker, item.call), item) for item in items]


def _renew(pool: Pool, one: Request | None, item: Held) -> str:
    if one is None:
        return "lost"
    one.lease_end = pool.now + pool.settings.lease_ms
    places.note_used(pool, one, item.usage)
    if one.used > one.charged:
        fair.settle(pool, one, one.used)
        fair.note_held(pool, one.used)
    return "ok"


def emit(pool: Pool, worker: str, items: list[Emission]) -> list[str]:
    return [_emit(pool, held(pool, item.id, worker, item.call), item) for item in items]


def _emit(pool: Pool, one: Request | None, item: Emission) -> str:
    if one is None:
        return "lost"
    answer = _append(pool, one, item.offset, item.chunks)
    if answer == "ok":
        places.note_used(pool, one, item.usage)
        pool.notify(one)
    return answer


def _keep_prompt(pool: Pool, one: Request, resume: bytes) -> bytes:
    """What stands before a `;` is kept apart, until the end."""
    prompt, mark, rest = resume.partition(b";")
    if not mark:
        return resume
    if not prompt:
        return rest
    one.prompt = prompt
    left = max(1_000, one.deadline - pool.now)
    pool.expire_at(f"prompt:{one.id}", left + pool.settings.result_ttl_ms)
    return rest


def _append(pool: Pool, one: Request, offset: int, chunks: Chunks) -> str:
    """Only what is new is appended; nothing where something is missing before it."""
    if offset > one.offset:
        return "gap"
    new = chunks[one.offset - offset :]
    size = one.output_bytes + sum(len(event) for event, _ in new)
    if size > pool.settings.result_bytes:
        return "large"
    one.chunks += [(event, _keep_prompt(pool, one, resume)) for event, resume in new]
    one.output_bytes = size
    one.offset += len(new)
    return "ok"


def finish(pool: Pool, worker: str, items: list[Ending]) -> list[str]:
    return [_finish(pool, worker, item) for item in items]


def _finish(pool: Pool, worker: str, item: Ending) -> str:
    one = held(pool, item.id, worker, item.call)
    if one is None:
        return _ended_before(pool.requests.get(item.id), worker, item)
    answer = _append(pool, one, item.offset, item.chunks)
    if answer == "gap":
        return "gap"
    one.used = fair.cost(pool, *item.usage)
    if answer == "large" or len(item.body) + one.output_bytes > pool.settings.result_bytes:
        one.reason = "result_too_large"
        places.end(pool, one, "failed", places.own_result("failed", one.reason))
        return "large"
    if item.state == "done":
        fair.learn(pool, one, item.usage[0], item.usage[2])
    one.reason = item.reason
    places.end(pool, one, item.state, item.result)
    return "ok"


def _ended_before(one: Request | None, worker: str, item: Ending) -> str:
    """A repeat by the same lease is answered as before."""
    if one is None or one.lease != (worker, item.call):
        return "lost"
    if one.state == "failed" and one.reason == "result_too_large":
        return "large"
    return "ok" if one.state == item.state else "lost"


def release(pool: Pool, worker: str, items: list[Release]) -> list[str]:
    return [_release(pool, held(pool, item.id, worker, item.call), item) for item in items]


def _release(pool: Pool, one: Request | None, item: Release) -> str:
    if one is None:
        return "lost"
    places.note_used(pool, one, item.usage)
    if item.blame == "attempt":
        _attempt(pool, one, item)
    elif item.blame == "crashed":
        places.crash(pool, one)
    else:
        places.give_back(pool, one, places.home(one))
    return one.state


def _attempt(pool: Pool, one: Request, item: Release) -> None:
    limits = pool.settings
    one.attempts += 1
    if one.attempts >= limits.attempts:
        if len(item.body) + one.output_bytes > limits.result_bytes:
            one.reason = "result_too_large"
            places.end(pool, one, "failed", places.own_result("failed", one.reason))
            return
        one.reason = item.reason
        places.end(pool, one, "failed", (item.head, item.body))
        return
    spread = 1 + limits.backoff_jitter * max(-1.0, min(1.0, item.jitter))
    delay = limits.backoff_ms * 2 ** (one.attempts - 1) * spread
    places.give_back(pool, one, "delayed", pool.now + math.ceil(delay))
