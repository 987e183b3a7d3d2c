"""What producers call: admit, reply, cancel, show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from forebay_shared.calls.library import Argument, Call, Library, unrefused
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


def _text(raw: bytes) -> str:
    return raw.decode()


def _admitted(row: list[Any]) -> Admitted | Refusal:
    kind = _text(row[0])
    if kind in ("new", "same"):
        return Admitted(_text(row[1]), _text(row[2]), kind == "same")
    return Refusal(kind, _text(row[1]), int(row[2]), _text(row[3]))


def _admitted_all(rows: list[Any]) -> list[Admitted | Refusal]:
    return [_admitted(row) for row in rows]


def _admissions(admissions: Sequence[Admission], inbox: str) -> list[Argument]:
    row: list[Argument] = [inbox, len(admissions)]
    for admission in admissions:
        row += admission.arguments()
    return row


def _shown(row: list[Any]) -> Shown:
    request_id, state, class_name, tenant, model = (_text(value) for value in row[:5])
    takes, attempts, crashes, offset, *times_ms = (int(value) for value in row[8:17])
    admitted_ms, taken_ms, ended_ms, deadline_ms, now_ms = times_ms
    return Shown(
        request_id=request_id,
        state=state,
        class_name=class_name,
        tenant=tenant,
        model=model,
        stream=bool(int(row[5])),
        rank=int(row[6]),
        waits_for=_text(row[7]),
        takes=takes,
        attempts=attempts,
        crashes=crashes,
        offset=offset,
        admitted_ms=admitted_ms,
        taken_ms=taken_ms,
        ended_ms=ended_ms,
        deadline_ms=deadline_ms,
        now_ms=now_ms,
        result=row[17],
    )


class Intake:
    """Calls of a producer."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def admit(
        self, admissions: Sequence[Admission], inbox: str = ""
    ) -> list[Admitted | Refusal]:
        """Store up to 100 requests, each whole or not at all; `inbox` gets their news.

        Idempotent by request id and by (tenant, Idempotency-Key).
        """
        (answers,) = unrefused(await self.admit_together([admissions], inbox))
        return answers

    async def admit_together(
        self, pages: Sequence[Sequence[Admission]], inbox: str = ""
    ) -> list[list[Admitted | Refusal] | ResponseError]:
        """`admit` for each page, in calls of their own that are sent at once.

        The error of a page that was refused stands in its place.
        """
        calls: list[Call] = [("admit", _admissions(page, inbox)) for page in pages]
        replies = await self._library.together(calls)
        return [
            reply if isinstance(reply, ResponseError) else _admitted_all(reply) for reply in replies
        ]

    async def reply(self, inbox: str, wanted: Sequence[tuple[str, int]]) -> list[Seen]:
        """State, result and new chunks of up to 100 requests; adds `inbox` to their watchers.

        `wanted` is (request id, chunks that the reader has); UNKNOWN chunks: a reader of results
        only. At most about 1 MiB of chunks and results come back, at least one.
        """
        arguments: list[Argument] = [inbox, len(wanted)]
        for request_id, offset in wanted:
            arguments += [request_id, offset]
        rows = await self._library.call("reply", *arguments)
        return [
            Seen(
                request_id=_text(row[0]),
                state=_text(row[1]),
                offset=int(row[2]),
                result=row[3],
                chunks=list(zip(map(int, row[4][::2]), row[4][1::2], strict=True)),
                ended=bool(row[5]),
            )
            for row in rows
        ]

    async def cancel(self, request_id: str, tenant: str = "") -> str:
        """End a queued or running request as `cancelled`; the state that it has now.

        Empty where no record exists or it is another tenant's (`tenant` empty: any). The worker is
        told through its control list. A request that has ended keeps its state.
        """
        return _text(await self._library.call("cancel", request_id, tenant, "", 0))

    async def leave(self, request_id: str, inbox: str, *, in_doubt: bool = False) -> str:
        """The last reader behind `inbox` leaves; the state that the request has now.

        It ends as `cancelled` unless it is detached or another replica reads it. `in_doubt`: its
        admit was not answered; an unknown id is then `cancelled` too, should the admit come later.
        """
        return _text(await self._library.call("cancel", request_id, "", inbox, int(in_doubt)))

    async def show(self, request_id: str, tenant: str = "") -> Shown | None:
        """One request, or None where no record exists or it is another tenant's."""
        row = await self._library.call("show", request_id, tenant)
        if not row:
            return None
        return _shown(row)
