"""Dead letters: read, admitted anew, thrown away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from forebay_shared.calls.library import ITEMS_PER_CALL, Argument, Library


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters: what is empty allows any. `older_ms`: dead for at least so long."""

    reason: str = ""
    class_name: str = ""
    tenant: str = ""
    request_id: str = ""
    older_ms: int = 0

    def arguments(self) -> list[Argument]:
        return [self.reason, self.class_name, self.tenant, self.request_id, self.older_ms]


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. `entry` names it; `request_id` is empty for what was no request of ours.

    `died_ms`: since 1970, by the server's clock. `requeued_as`: its last requeue, or empty. `head`
    and `body` are the payload, empty where it was not asked for; a head that is empty all the same
    cannot be admitted anew.
    """

    entry: str
    request_id: str
    reason: str
    class_name: str
    tenant: str
    died_ms: int
    size_bytes: int
    model: str
    requeued_as: str
    head: bytes
    body: bytes

    @property
    def name(self) -> str:
        """What people call it: the request's id, or where there is none the entry's."""
        return self.request_id or self.entry


@dataclass(frozen=True, slots=True)
class Requeued:
    """What became of a requeue.

    `outcome`: `ok`, or nothing was admitted: `live` (its last requeue `request_id` waits or runs),
    `none` (no such letter), `payload` (it holds none), `class` (there is no class `class_name` any
    more), `draining` (the pool), `often` (requeued as often as ids can say).
    """

    outcome: str
    request_id: str = ""
    class_name: str = ""


def _base(request_id: str) -> str:
    """The id without the number of a requeue."""
    return ".".join(request_id.split(".")[:2])


def _letter(row: list[Any]) -> Letter:
    entry, request_id, reason, class_name, tenant = (value.decode() for value in row[:5])
    known = json.loads(row[7]) if row[7] else {}
    return Letter(
        entry=entry,
        request_id=request_id,
        reason=reason,
        class_name=class_name,
        tenant=tenant,
        died_ms=int(row[5] or 0),
        size_bytes=int(row[6] or 0),
        model=str(known.get("model", "")),
        requeued_as=f"{_base(request_id)}.{row[8]}" if row[8] else "",
        head=row[9],
        body=row[10],
    )


class Letters:
    """Calls about the dead letters of one pool."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def each(
        self, wanted: Wanted, *, start: str = "", payload: bool = False
    ) -> AsyncIterator[Letter]:
        """The letters that match, newest first from `start` (an entry; empty: the newest) on.

        Read in parts, so one that comes meanwhile may be missed, but none is met twice.
        """
        following: str | None = start
        while following is not None:
            letters, following = await self._page(wanted, following, ITEMS_PER_CALL, payload)
            for letter in letters:
                yield letter

    async def at(self, entry: str, *, payload: bool = False) -> Letter | None:
        """The letter of this entry id (`<ms>-<n>`), or None."""
        letters, _ = await self._page(Wanted(), entry, 1, payload)
        return letters[0] if letters and letters[0].entry == entry else None

    async def _page(
        self, wanted: Wanted, start: str, most: int, payload: bool
    ) -> tuple[list[Letter], str | None]:
        rows, following = await self._library.call(
            "letters", start, most, int(payload), *wanted.arguments()
        )
        return [_letter(row) for row in rows], following.decode() or None

    async def purge(self, wanted: Wanted, *, start: str = "") -> int:
        """Throw away the letters that match, from `start` on to older ones; how many they were."""
        gone, following = 0, start
        while True:
            count, on = await self._library.call("purge", following, *wanted.arguments())
            gone, following = gone + int(count), on.decode()
            if not following:
                return gone

    async def requeue(self, entry: str) -> Requeued:
        """Admit the letter of this entry id anew under a new id; the letter stays.

        Refused while its last requeue waits or runs, so the call may be repeated.
        """
        word, value = (part.decode() for part in await self._library.call("requeue", entry))
        if word == "class":
            return Requeued(word, class_name=value)
        return Requeued(word, request_id=value)
