"""What workers call: take, renew, emit, finish, release.

A lease is the fence: `<worker>/<call>`, the worker's id and the number of the take that granted
the request. A write is accepted only while the record is `running` under exactly this lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay_shared.calls.library import (
    HEAVY_ITEMS_PER_CALL,
    Argument,
    Call,
    Library,
    batched,
    unrefused,
)
from forebay_shared.calls.work import Emission, Ending, Grant, Held, Release, Take, Taken
from forebay_shared.records import Usage


def _usage(usage: Usage) -> list[Argument]:
    return [usage.prompt, usage.cached, usage.output]


def _chunks(chunks: Sequence[tuple[bytes, bytes]]) -> list[Argument]:
    row: list[Argument] = [len(chunks)]
    for event, resume in chunks:
        row += [event, resume]
    return row


def _ending(one: Ending) -> list[Argument]:
    row: list[Argument] = [one.request_id, one.call, one.result.state, one.result.reason]
    row += [*_usage(one.result.usage), one.result.head(), one.result.body, one.offset]
    return row + _chunks(one.chunks)


def _endings(endings: Sequence[Ending]) -> list[Argument]:
    row: list[Argument] = [len(endings)]
    for one in endings:
        row += _ending(one)
    return row


def _releases(releases: Sequence[Release]) -> list[Argument]:
    row: list[Argument] = [len(releases)]
    for one in releases:
        row += [one.request_id, one.call, one.blame.value, one.jitter]
        row += [*_usage(one.usage), one.result.reason]
        row += [one.result.head(), one.result.body]
    return row


def _grant(row: list[Any]) -> Grant:
    request_id, class_name, tenant = (value.decode() for value in row[:3])
    call, take, attempts, crashes, offset = (int(value) for value in row[3:8])
    return Grant(
        request_id=request_id,
        call=call,
        class_name=class_name,
        tenant=tenant,
        take=take,
        attempts=attempts,
        crashes=crashes,
        offset=offset,
        solo=bool(row[8]),
        left_ms=int(row[9]),
        waited_ms=int(row[10]),
        head=row[11],
        body=row[12],
    )


def _taken(row: list[Any]) -> Taken:
    names = [name.decode() for name in row[1][::2]]
    return Taken(
        [_grant(one) for one in row[0]], dict(zip(names, map(int, row[1][1::2]), strict=True))
    )


def _answers(rows: list[bytes]) -> list[str]:
    return [row.decode() for row in rows]


class Leases:
    """Calls of a worker. Answers per item are words, in the order of the items.

    `ok`; `lost`: the lease is not this worker's any more, nothing was written; `gap`: chunks are
    missing before `offset`, nothing was written; `large`: output would be longer than allowed,
    nothing was written.
    """

    def __init__(self, library: Library) -> None:
        self._library = library

    async def take(self, take: Take) -> Taken:
        """Grant up to `take.count` requests by the fairness rule.

        The same call number answers with the same grants that are still held and grants nothing
        new; a lower one gets an empty answer.
        """
        return _taken(await self._library.call("take", *take.arguments()))

    async def finish(self, worker: str, endings: Sequence[Ending]) -> list[str]:
        """End requests with their results: per item `ok`, `lost`, `gap` or `large`.

        `large`: result and output together are longer than allowed; the request ended as `failed`
        with reason `result_too_large`. A repeat answers as the first did.
        """
        return _answers(await self._library.call("finish", worker, *_endings(endings)))

    async def finish_take(self, endings: Sequence[Ending], take: Take) -> tuple[list[str], Taken]:
        """`finish`, then `take`; in one atomic call where that is not too heavy, else in two.

        Two are sent at once, but where ends wait for replicas.
        """
        if self._library.replicates:  # grants would wait with them, and nobody renews those
            return await self.finish(take.worker, endings), await self.take(take)
        ends, wanted = [take.worker, *_endings(endings)], take.arguments()
        if len(endings) + take.count <= HEAVY_ITEMS_PER_CALL:
            answers, taken = await self._library.call("finish_take", *ends, *wanted)
        else:
            calls: list[Call] = [("finish", ends), ("take", wanted)]
            answers, taken = unrefused(await self._library.together(calls))
        return _answers(answers), _taken(taken)

    async def renew(self, worker: str, held: Sequence[Held]) -> list[str]:
        """Renew up to 100 leases: per item `ok` or `lost`. Tokens so far are charged."""
        arguments: list[Argument] = [worker, len(held)]
        for one in held:
            arguments += [one.request_id, one.call, *_usage(one.usage)]
        return _answers(await self._library.call("renew", *arguments))

    async def emit(self, worker: str, emissions: Sequence[Emission]) -> list[str]:
        """Append chunks of up to 100 streams: per item `ok`, `lost`, `gap` or `large`.

        Chunks at or below the record's offset are not appended again, so a repeat is harmless.
        """
        arguments: list[Argument] = [worker, len(emissions)]
        for one in emissions:
            arguments += [one.request_id, one.call, one.offset, *_usage(one.usage)]
            arguments += _chunks(one.chunks)
        return _answers(await self._library.call("emit", *arguments))

    async def release(self, worker: str, releases: Sequence[Release]) -> list[str]:
        """Give requests back: per item the new state (`queued`, `failed`, `dead`) or `lost`.

        More than one call may give back go in several, sent at once.
        """
        pages = batched(releases, HEAVY_ITEMS_PER_CALL)
        calls: list[Call] = [("release", [worker, *_releases(page)]) for page in pages]
        replies = unrefused(await self._library.together(calls))
        return [word for reply in replies for word in _answers(reply)]
