"""The whole stored state of a pool on a server, in the oracle's normal form, in one step."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from redis import Redis
from tests.model.stored import Normal, number

SCRIPT = """
local rows = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local kind, value = redis.call('TYPE', key).ok, nil
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'stream' then
    value = {redis.call('XRANGE', key, '-', '+')}
    local consumers = redis.pcall('XINFO', 'CONSUMERS', key, 'workers')
    if not consumers.err then
      value[2] = redis.call('XPENDING', key, 'workers', '-', '+', 10000)
      value[3] = consumers
    end
  end
  rows[#rows + 1] = {string.sub(key, #ARGV[1] + 1), kind, redis.call('PTTL', key), value}
end
return rows
"""

WHOLE = """
local rows = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  rows[#rows + 1] = key
  rows[#rows + 1] = redis.call('DUMP', key)
end
return rows
"""

NEARLY = 1e-6
HIDDEN = ("audit", "forget:")
"""Fields of the clock that only say where a page-wise duty stands."""


def dump(client: Redis, pool: str) -> tuple[Normal, set[str]]:
    """Key → normal value of all keys of the pool, and the keys that have a TTL."""
    rows = raw_rows(client, pool)
    state: Normal = {}
    lives: set[str] = set()
    for raw_key, _, ttl, value in rows:
        key = raw_key.decode()
        state[key] = READERS.get(key.partition(":")[0], _hash)(value)
        if not state[key] and key.startswith(("clock", "inbox:")):
            del state[key]  # nothing that says anything
        if ttl >= 0:
            lives.add(key)
    return state, lives


def raw_rows(client: Redis, pool: str) -> list[Any]:
    """For each key: name without prefix, type, TTL in ms or -1, value as the server tells it."""
    rows: list[Any] = client.eval(SCRIPT, 0, f"fb:{{{pool}}}:")  # type: ignore[assignment]
    return rows


def untouched(client: Redis, pool: str) -> dict[bytes, bytes]:
    """Key → serialized value of all keys, for whoever must not have written anything."""
    rows: list[bytes] = client.eval(WHOLE, 0, f"fb:{{{pool}}}:")  # type: ignore[assignment]
    return dict(zip(rows[::2], rows[1::2], strict=True))


def _text(raw: bytes) -> str:
    return raw.decode()


def _flat(raw: list[bytes]) -> dict[str, bytes]:
    return {_text(field): value for field, value in zip(raw[::2], raw[1::2], strict=True)}


def _hash(raw: list[bytes]) -> dict[str, Any]:
    return {field: number(_text(value)) for field, value in _flat(raw).items()}


def _clock(raw: list[bytes]) -> dict[str, Any]:
    """Counters at 0 say nothing; a tag at 0 does."""
    return {
        field: value
        for field, value in _hash(raw).items()
        if not field.startswith(HIDDEN) and (says(value) or field[:2] in ("a:", "F:"))
    }


def says(value: Any) -> bool:
    """Whether a field of the clock says something: sums of costs come back to 0 only nearly."""
    return abs(value) > NEARLY if isinstance(value, float) else bool(value)


def _ledger(raw: list[bytes]) -> dict[str, Any]:
    return {name: count for name, count in _hash(raw).items() if count}


def _settings(raw: list[bytes]) -> dict[str, Any]:
    fields = _flat(raw)
    return {"json": json.loads(fields["json"]), "epoch": int(fields["epoch"])}


def _list(raw: list[bytes]) -> list[Any]:
    return [number(_text(value)) for value in raw]


def _result(raw: bytes) -> tuple[Any, bytes]:
    head, _, body = raw.partition(b"\n")
    return json.loads(head), body


def _number_of(entry: bytes) -> int:
    left, _, right = _text(entry).partition("-")
    assert right == "0", f"entry ids end in -0: {entry!r}"
    return int(left)


def _output(raw: list[Any]) -> list[Any]:
    rows: list[Any] = []
    for entry, pairs in raw[0]:
        fields, at = _flat(pairs), _number_of(entry)
        if "end" in fields:
            rows.append((at, "end", _text(fields["end"]), int(fields["offset"])))
        else:
            rows.append((at, fields["event"], fields["resume"]))
    return rows


def _queue(raw: list[Any]) -> dict[str, Any]:
    entries = []
    for entry, pairs in raw[0]:
        f = _flat(pairs)
        entries.append((_number_of(entry), _text(f["id"]), int(f["wire"]), f["head"], f["body"]))
    rows = {_number_of(row[0]): _text(row[1]) for row in raw[1]}
    consumers = dict(map(_consumer, raw[2]))
    # The names of given-back places are three at most, so that they may stay without rows.
    kept = {name for name, count in consumers.items() if count or not name.startswith("@")}
    return {"entries": entries, "rows": rows, "consumers": kept}


def _consumer(raw: list[Any]) -> tuple[str, int]:
    fields = dict(zip(raw[::2], raw[1::2], strict=True))
    return _text(fields[b"name"]), fields[b"pending"]


def _inbox(raw: list[Any]) -> list[str]:
    news = [_flat(pairs) for _, pairs in raw[0]]
    return [_text(fields["id"]) for fields in news if "id" in fields]


def _dead(raw: list[Any]) -> list[dict[str, Any]]:
    return [_letter(_flat(pairs)) for _, pairs in raw[0]]


def _letter(fields: dict[str, bytes]) -> dict[str, Any]:
    meta = json.loads(fields["meta"]) if fields["meta"] else {}
    return {
        **{name: _text(fields[name]) for name in ("id", "reason", "class", "tenant")},
        **{name: float(fields[name]) for name in ("at", "size")},
        "meta": {name: number(str(value)) for name, value in meta.items()},
        "head": fields["head"],
        "body": fields["body"],
    }


def _worker(raw: list[bytes]) -> dict[str, Any]:
    fields = _hash(raw)
    if "models" in fields:
        fields["models"] = list(json.loads(fields["models"]))
    return fields


READERS: dict[str, Callable[[Any], Any]] = {
    "clock": _clock,
    "settings": _settings,
    "ledger": _ledger,
    "layout": _text,
    "idempotency": _text,
    "requeues": float,
    "result": _result,
    "output": _output,
    "prompt": bytes,
    "queue": _queue,
    "inbox": _inbox,
    "dead": _dead,
    "bell": len,
    "control": _list,
    "grant": _list,
    "worker": _worker,
} | dict.fromkeys(
    ("flows", "leases", "delayed", "deadlines", "workers", "models", "ready", "tags", "waiting",
     "suspects", "depth", "sizes", "returned", "refused"),
    _hash,
)  # fmt: skip
