"""What producers call: admit, reply, cancel, show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from forebay_shared.calls.library import Argument, Call, Library, unrefused
from forebay_shared.calls.requests import Admission, Admitted, Refusal, Seen, Shown


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
