"""The final state of the queue, copied out of Redis into one JSON file for the checker."""

from __future__ import annotations

from typing import Any

from tests.chaos.stage import Stage
from tests.flow.identities import PERMANENT

from forebay_shared.keys import POOLS

Json = dict[str, Any]
PAGE = 1_000
INDEXES = ("leases", "delayed", "deadlines")


async def dump(stage: Stage) -> Json:
    """Ledger, records, results, outputs, indexes, streams and consumers, keys without TTL."""
    status = await stage.operator.status()
    names = await _names(stage)
    records = {one: await _hash(stage, "request:" + one) for one in _of(names, "request")}
    return {
        "ledger": status["ledger"],
        "queued": status["queued"],
        "running": status["running"],
        # Its time may have been over since it was listed.
        "records": {one: record for one, record in records.items() if record},
        "results": {one: await _text(stage, "result:" + one) for one in _of(names, "result")},
        "outputs": {one: await _output(stage, "output:" + one) for one in _of(names, "output")},
        "queues": {one: await _queue(stage, "queue:" + one) for one in _of(names, "queue")},
        "indexes": {name: await stage.raw("ZCARD", name) for name in INDEXES},
        "places": {name: await _sum(stage, names, name) for name in ("waiting", "suspects")},
        "kept": await without_ttl(stage, names),
        "inboxes": len(_of(names, "inbox")),
        "dead": await stage.raw("XLEN", "dead"),
        "libraries": len(await stage.redis.function_list()),
    }


async def leftovers(stage: Stage) -> list[str]:
    """Names of what only work keeps: streams, and keys without TTL."""
    names = await _names(stage)
    return _of(names, "queue") + await without_ttl(stage, names)


async def without_ttl(stage: Stage, names: list[str]) -> list[str]:
    """Names of keys that would stay for ever, beside those that may."""
    asked = [name for name in names if name not in PERMANENT | {POOLS}]
    kept: list[str] = []
    for start in range(0, len(asked), PAGE):
        page = asked[start : start + PAGE]
        pipe = stage.redis.pipeline(transaction=False)
        for name in page:
            pipe.ttl(stage.prefix + name)
        kept += [
            name for name, ttl_s in zip(page, await pipe.execute(), strict=True) if ttl_s == -1
        ]
    return sorted(kept)


async def _names(stage: Stage) -> list[str]:
    """Names of all keys, without the pool's prefix."""
    found = {raw async for raw in stage.redis.scan_iter(count=1_000) if isinstance(raw, bytes)}
    return [raw.decode().removeprefix(stage.prefix) for raw in found]


def _of(names: list[str], kind: str) -> list[str]:
    """What follows the kind in the names of this kind."""
    return [name.removeprefix(kind + ":") for name in names if name.startswith(kind + ":")]


async def _sum(stage: Stage, names: list[str], kind: str) -> int:
    return sum([await stage.raw("ZCARD", f"{kind}:{one}") for one in _of(names, kind)])


def _decoded(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}


async def _hash(stage: Stage, name: str) -> dict[str, str]:
    return _decoded(await stage.raw("HGETALL", name))


async def _text(stage: Stage, name: str) -> str:
    raw: bytes | None = await stage.raw("GET", name)
    return (raw or b"").decode()


async def _output(stage: Stage, name: str) -> Json:
    """Chunks as (offset, event), and the end marks as (offset, state, count)."""
    entries = await stage.raw("XRANGE", name, "-", "+")
    rows = [(int(entry.split(b"-")[0]), _decoded(fields)) for entry, fields in entries]
    return {
        "chunks": [(offset, row["event"]) for offset, row in rows if "event" in row],
        "ends": [(offset, row["end"], int(row["offset"])) for offset, row in rows if "end" in row],
    }


async def _queue(stage: Stage, name: str) -> Json:
    consumers = await stage.raw("XINFO CONSUMERS", name, "workers")
    return {
        "entries": await stage.raw("XLEN", name),
        "consumers": [one["name"].decode() for one in consumers],
    }
