"""What readers see: reply, show; and cancel."""

from __future__ import annotations

import json

from tests.model import places
from tests.model.state import Pool, Request

WATCHERS, CHUNK_BYTES = 4, 1024 * 1024


def raw(one: Request) -> bytes:
    """The result as it is stored: a JSON head, a line feed, the body."""
    if one.result is None:
        return b""
    head, body = one.result
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + body


def reply(pool: Pool, inbox: str, items: list[tuple[str, int]]) -> list[list[object]]:
    left = CHUNK_BYTES
    rows: list[list[object]] = []
    for request_id, offset in items:
        one = pool.requests.get(request_id)
        if one is None:
            rows.append([request_id, "", 0, b"", [], 0])
            continue
        if inbox and one.live:
            watch(one, inbox)
        chunks, left = _chunks(one, offset, left)
        ended = _ended(one, offset, len(chunks))
        result = b"" if one.live else raw(one)
        flat = [value for number, event in chunks for value in (str(number), event)]
        rows.append([one.id, one.state, one.offset, result, flat, int(ended)])
    return rows


def watch(one: Request, inbox: str) -> None:
    """At most 4 watch; the oldest goes."""
    if inbox not in one.watchers:
        one.watchers = [*one.watchers, inbox][-WATCHERS:]


def _chunks(one: Request, offset: int, left: int) -> tuple[list[tuple[int, bytes]], int]:
    """What comes after `offset`, until the bytes of the call are used up."""
    chunks: list[tuple[int, bytes]] = []
    if offset >= 0:
        for number, (event, _) in enumerate(one.chunks[offset:], offset + 1):
            if left <= 0:
                break
            chunks.append((number, event))
            left -= len(event)
    return chunks, left


def _ended(one: Request, offset: int, got: int) -> bool:
    """Nothing follows any more what the reader has."""
    return not one.live and (offset < 0 or offset + got >= one.offset)


def cancel(pool: Pool, request_id: str, tenant: str = "") -> str:
    one = pool.requests.get(request_id)
    if one is None or tenant not in ("", one.tenant):
        return ""
    if one.live:
        places.close(pool, one, "cancelled", "cancelled")
    return one.state


def show(pool: Pool, request_id: str, tenant: str = "") -> list[object]:
    one = pool.requests.get(request_id)
    if one is None or tenant not in ("", one.tenant):
        return []
    takeable = [other.id for other in pool.live(one.class_name) if other.takeable]
    rank = takeable.index(one.id) if one.takeable else -1
    return [
        one.id, one.state, one.class_name, one.tenant, one.model, str(one.stream), rank,
        _waits_for(pool, one), one.takes, one.attempts, one.crashes, one.offset,
        one.admitted, one.taken, one.ended, one.deadline, pool.now, raw(one),
    ]  # fmt: skip


def _waits_for(pool: Pool, one: Request) -> str:
    alive = pool.now - pool.settings.worker_ttl_ms
    if one.state != "queued":
        return ""
    if one.place == "delayed":
        return "retry"
    if pool.paused:
        return "paused"
    if not any(seen >= alive for seen in pool.registry.values()):
        return "worker"
    return "suspect" if one.place == "suspect" else "slot"
