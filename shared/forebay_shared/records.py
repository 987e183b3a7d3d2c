"""What is stored: the envelope of a request and its terminal record.

A request is stored as the fields `id`, `wire`, `head` and `body` of one stream entry. `head` is a
small JSON object, `body` the client's bytes as received. A result is stored as one string: a JSON
head, a line feed, the answer's bytes as the engine gave them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

WIRE_VERSION = 1
"""Version of the envelope. A worker leaves entries with a newer one for newer workers."""

State = Literal["queued", "running", "done", "failed", "cancelled", "expired", "shed", "dead"]
TERMINAL: frozenset[str] = frozenset({"done", "failed", "cancelled", "expired", "shed", "dead"})


class Undecodable(ValueError):
    """Stored bytes that are not what this version writes."""


def _decode_head(raw: bytes) -> dict[str, Any]:
    try:
        head = json.loads(raw)
    except (ValueError, UnicodeDecodeError) as error:
        raise Undecodable(f"head is not JSON: {type(error).__name__}") from None
    if not isinstance(head, dict):
        raise Undecodable("head is not a JSON object")
    return head


@dataclass(frozen=True, slots=True)
class Envelope:
    """A request as a producer stores it and a worker runs it.

    `headers` are those that travel to the engine (trace context, `x-vllm-priority`), in lower case.
    `stream`: the client reads chunks. `progress`: output is kept over drain and crash.
    """

    path: str
    model: str
    body: bytes
    stream: bool = False
    progress: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    def head(self) -> bytes:
        """The stored JSON head, without the body."""
        return json.dumps(
            {
                "path": self.path,
                "model": self.model,
                "stream": self.stream,
                "progress": self.progress,
                "headers": self.headers,
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, head: bytes, body: bytes) -> Envelope:
        """The envelope from its stored parts. Raises Undecodable."""
        fields = _decode_head(head)
        try:
            return cls(
                path=str(fields["path"]),
                model=str(fields["model"]),
                body=body,
                stream=bool(fields["stream"]),
                progress=bool(fields["progress"]),
                headers={str(k): str(v) for k, v in fields["headers"].items()},
            )
        except (KeyError, AttributeError) as error:
            raise Undecodable(f"head lacks a field: {error}") from None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. `cached` are those of `prompt` that the engine had already."""

    prompt: int = 0
    cached: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """A terminal record.

    `status` is the HTTP status of the answer; 0 where the library ended the request itself and
    only `state` and `reason` tell (`deadline`, `cancelled`, `shed`, `crash_loop`, `lost`, …).
    Of a stream `body` is empty unless it failed; its text is in the output stream.
    """

    state: str
    status: int = 0
    content_type: str = "application/json"
    reason: str = ""
    finish_reason: str = ""
    usage: Usage = Usage()
    body: bytes = b""

    def head(self) -> bytes:
        """The stored JSON head, without the body."""
        return json.dumps(
            {
                "state": self.state,
                "status": self.status,
                "type": self.content_type,
                "reason": self.reason,
                "finish_reason": self.finish_reason,
                "usage": {
                    "prompt": self.usage.prompt,
                    "cached": self.usage.cached,
                    "output": self.usage.output,
                },
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Result:
        """The record from its stored string. Raises Undecodable."""
        head, _, body = raw.partition(b"\n")
        fields = _decode_head(head)
        usage = fields.get("usage") or {}
        return cls(
            state=str(fields.get("state", "")),
            status=int(fields.get("status", 0)),
            content_type=str(fields.get("type", "application/json")),
            reason=str(fields.get("reason", "")),
            finish_reason=str(fields.get("finish_reason", "")),
            usage=Usage(**{k: int(usage.get(k, 0)) for k in ("prompt", "cached", "output")}),
            body=body,
        )
