"""Work as workers ask for it, get it, hold it and give it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from forebay_shared.calls.library import Argument
from forebay_shared.records import WIRE_VERSION, Result, Usage


@dataclass(frozen=True, slots=True)
class Take:
    """One call for work. `call` grows by one with each new call and is repeated until answered.

    `slots`: all slots of the worker. `count`: most grants now. `free`: per class that this worker
    serves now, most grants of that class.
    """

    worker: str
    call: int
    slots: int
    count: int
    free: Mapping[str, int]

    def arguments(self) -> list[Argument]:
        row: list[Argument] = [self.worker, self.call, self.slots, WIRE_VERSION, self.count]
        row.append(len(self.free))
        for name, most in self.free.items():
            row += [name, most]
        return row


@dataclass(frozen=True, slots=True)
class Grant:
    """A request granted under a lease. `take`: how often it was granted, this one included.

    `offset`: chunks that earlier takes have delivered. `solo`: held with no other suspect.
    `left_ms` until the deadline, `waited_ms` since the admit.
    """

    request_id: str
    call: int
    class_name: str
    tenant: str
    take: int
    attempts: int
    crashes: int
    offset: int
    solo: bool
    left_ms: int
    waited_ms: int
    head: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """Answer to a take. `backlog`: takeable requests per served class after it."""

    grants: list[Grant]
    backlog: dict[str, int]


@dataclass(frozen=True, slots=True)
class Held:
    """A request that this worker runs: what it has used so far."""

    request_id: str
    call: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class Emission:
    """New chunks of one streamed request. `offset`: chunks that came before these.

    A chunk is (event, resume): the client-visible event's data, and what a later attempt needs to
    continue after it (opaque to the library, may be empty).
    """

    request_id: str
    call: int
    offset: int
    usage: Usage
    chunks: Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one request: its result, and the chunks not emitted yet (few, ≤ 1 MiB)."""

    request_id: str
    call: int
    result: Result
    offset: int = 0
    chunks: Sequence[tuple[bytes, bytes]] = ()


class Blame(StrEnum):
    """Why a running request is given back."""

    BLAMELESS = "blameless"
    """Drain, preemption, engine not reached or busy, a stop the worker saw coming."""
    ATTEMPT = "attempt"
    """The engine is well and answered with an error."""
    CRASHED = "crashed"
    """The engine died after it had accepted."""


@dataclass(frozen=True, slots=True)
class Release:
    """A running request given back. `jitter` in [-1, 1] spreads the back-off.

    `result`: what is stored if this was the last attempt allowed.
    """

    request_id: str
    call: int
    blame: Blame
    usage: Usage
    result: Result
    jitter: float = 0.0
