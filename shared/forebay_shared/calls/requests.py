"""A request as producers send it and see it."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_shared.calls.library import Argument
from forebay_shared.records import WIRE_VERSION, Envelope

UNKNOWN = -1
"""In place of a number that the producer does not know."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one tenant; 0 means none."""

    depth: int = 0
    """Most queued requests of the tenant in one class."""
    bytes: int = 0
    """Most bytes of never-taken requests; 0 means the pool's setting."""
    requests_per_minute: float = 0
    tokens_per_minute: float = 0


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Admission:
    """One request to admit.

    `output_limit`: the most tokens it can produce (max_tokens × n), UNKNOWN where it names none, 0
    for pooling endpoints. `output_estimate`: a fixed estimate of output tokens, UNKNOWN to learn.
    `idempotency`: hash of the Idempotency-Key, or empty. `fingerprint`: hash of tenant and body;
    tells a refused client that returns, and another body under the same Idempotency-Key.
    `detached`: it goes on though nobody reads it; a repeat by Idempotency-Key can make it so.
    """

    request_id: str
    class_name: str
    tenant: str
    envelope: Envelope
    timeout_ms: int
    weight: float = 1.0
    output_limit: int = UNKNOWN
    output_estimate: int = UNKNOWN
    idempotency: str = ""
    fingerprint: str = ""
    limits: Limits = NO_LIMITS
    detached: bool = False

    def arguments(self) -> list[Argument]:
        one = self.envelope
        return [
            self.request_id,
            self.class_name,
            self.tenant,
            self.weight,
            self.timeout_ms,
            WIRE_VERSION,
            one.model,
            self.output_limit,
            self.output_estimate,
            int(one.stream),
            int(one.progress),
            int(self.detached),
            self.idempotency,
            self.fingerprint,
            self.limits.depth,
            self.limits.bytes,
            self.limits.requests_per_minute,
            self.limits.tokens_per_minute,
            one.head(),
            one.body,
        ]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request is stored. `request_id` is an earlier one's where `repeated` by idempotency."""

    request_id: str
    state: str
    repeated: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing was stored.

    `reason`: `full` (limit `class:<name>` or `pool`), `tenant` (limit `tenant:<what>`), `draining`,
    `conflict` (same Idempotency-Key, other body), `gone` (its result's time is over), `class`
    (unknown class). `request_id` is the earlier request's for `conflict` and `gone`.
    """

    reason: str
    limit: str = ""
    retry_after_ms: int = 0
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What `reply` saw of one request. `state` is empty where no record exists.

    `result` is the stored terminal record (see `Result.decode`). `chunks` are (offset, event) with
    offsets above the asked one, in order and without a gap. `ended`: the state is final, no chunk
    follows and `result` is here. A final state that is not `ended`: ask again.
    """

    request_id: str
    state: str
    offset: int
    result: bytes
    chunks: list[tuple[int, bytes]]
    ended: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """One request as its owner may see it. Times are ms since 1970 by the server's clock.

    `rank`: place in its class by arrival, 0 is next; UNKNOWN when it does not wait. `waits_for`:
    `slot`, `worker` (none alive), `paused`, `retry`, `suspect`, or empty when it does not wait.
    """

    request_id: str
    state: str
    class_name: str
    tenant: str
    model: str
    stream: bool
    rank: int
    waits_for: str
    takes: int
    attempts: int
    crashes: int
    offset: int
    admitted_ms: int
    taken_ms: int
    ended_ms: int
    deadline_ms: int
    now_ms: int
    result: bytes
