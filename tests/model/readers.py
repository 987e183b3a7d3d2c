"""What readers see: reply, show; and cancel."""

from __future__ import annotations

import json

from tests.model import places
from tests.model.state import Pool, Request

BYTES = 1024 * 1024
FORESTALLED_MS = 900_000


def raw(one: Request) -> bytes:
    """The result as it is stored: a JSON head, a line feed, the body."""
    if one.result is None:
        return b""
    head, body = one.result
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + body


def reply(pool: Pool, inbox: str, items: list[tuple[str, int]]) -> list[list[object]]:
    """State, chunks, and at the end the result, as far as the bytes of a call go."""
    left = BYTES
    rows: list[list[object]] = []
    for request_id, offset in items:
        one = pool.requests.get(request_id)
        if one is None:
            rows.append([request_id, "", 0, b"", [], 0])
            continue
        if inbox and one.live:
            one.watch(inbox)
        chunks, left = _chunks(one, offset, left)
        seen_all = offset < 0 or offset + len(chunks) >= one.offset
        ended = not one.live and seen_all and left > 0
        result = raw(one) if ended else b""
        left -= len(result)
        flat = [value for number, event in chunks for value in (str(number), event)]
        rows.append([one.id, one.state, one.offset, result, flat, int(ended)])
    return rows


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


def cancel(
    pool: Pool, request_id: str, tenant: str = "", inbox: str = "", in_doubt: bool = False
) -> str:
    one = pool.requests.get(request_id)
    if one is None:
        return _forestall(pool, request_id, tenant) if in_doubt else ""
    if tenant not in ("", one.tenant):
        return ""
    if one.live and not (inbox and _wanted_without(pool, one, inbox)):
        places.close(pool, one, "cancelled", "cancelled")
    return one.state


def _wanted_without(pool: Pool, one: Request, inbox: str) -> bool:
    """The reader behind an inbox leaves; replicas whose inbox is gone read nothing either."""
    one.watchers = [name for name in one.watchers if name != inbox and name in pool.inboxes]
    return bool(one.detached or one.watchers)


def _forestall(pool: Pool, request_id: str, tenant: str) -> str:
    """Its admit may still come, and then finds it cancelled. It is counted nowhere."""
    one = Request(
        request_id, "", tenant, 0, 0, 0, "", 0, 0, 0, 0, 0, "", b"", b"", 0, pool.now,
        forestalled=True, state="cancelled", place="", ended=pool.now,
    )  # fmt: skip
    pool.requests[request_id] = one
    pool.expire_at(f"request:{request_id}", FORESTALLED_MS)
    return "cancelled"


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
