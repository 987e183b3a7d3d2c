"""A process that admits requests, or takes and ends them, as fast as Redis answers.

It runs until it is killed. What Redis acknowledged is noted at once. While Redis is away the same
call is repeated, as producers and workers do.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from tests.durability.notes import Notes

from forebay_shared.calls import Admission, Admitted, Ending, Grant, Intake, Leases, Library, Take
from forebay_shared.calls.library import HEAVY_ITEMS_PER_CALL
from forebay_shared.connect import connect, redis_away
from forebay_shared.ids import new_process_id, new_request_id
from forebay_shared.records import Envelope, Result, Usage
from forebay_shared.settings import ClassSettings, PoolSettings

AT_ONCE = 6
MOST = 30_000
"""So many requests an admitting process sends, so that a run has bounds."""
PAUSE_S = 0.02
POOL = "default"
NAMES = ("high", "normal", "low")
SETTINGS = PoolSettings(
    classes=tuple(ClassSettings(name=name, depth=1_000_000) for name in NAMES),
    depth=1_000_000,
    tenant_bytes=1 << 40,
)
ENVELOPE = Envelope("/v1/chat/completions", "m", b'{"model":"m","messages":[]}' + b" " * 400)
DONE = Result("done", status=200, body=b'{"choices":[]}' + b" " * 200, usage=Usage(10, 0, 5))

Reply = TypeVar("Reply")


async def until_answered(call: Callable[[], Awaitable[Reply]]) -> Reply:
    """The same call again until Redis answers. Raises what it answers otherwise."""
    while True:
        try:
            return await call()
        except Exception as error:
            if not redis_away(error):
                raise
            await asyncio.sleep(PAUSE_S)


async def admit(library: Library, notes: Notes) -> None:
    """Admit batch after batch; each request that Redis called stored is noted."""
    intake = Intake(library)
    for number in range(MOST // AT_ONCE // HEAVY_ITEMS_PER_CALL):
        batch = [
            Admission(new_request_id(POOL), NAMES[number % 3], f"t{i % 5}", ENVELOPE, 3_600_000)
            for i in range(HEAVY_ITEMS_PER_CALL)
        ]

        async def call(batch: list[Admission] = batch) -> object:
            return await intake.admit(batch)

        replies = await until_answered(call)
        assert isinstance(replies, list)
        notes.add("admitted", [one.request_id for one in replies if isinstance(one, Admitted)])


async def serve(library: Library, notes: Notes) -> None:
    """Take and end; each end that Redis called written is noted."""
    leases, worker, grants = Leases(library), new_process_id(), list[Grant]()
    free, call = dict.fromkeys(NAMES, HEAVY_ITEMS_PER_CALL), 0
    while True:
        call += 1
        take = Take(worker, call, 64, HEAVY_ITEMS_PER_CALL, free)
        endings = [Ending(one.request_id, one.call, DONE) for one in grants]

        async def both(endings: list[Ending] = endings, take: Take = take) -> object:
            return await leases.finish_take(endings, take)

        reply = await until_answered(both)
        assert isinstance(reply, tuple)
        words, taken = reply
        ended = zip(endings, words, strict=True)
        notes.add("ended", [one.request_id for one, word in ended if word == "ok"])
        grants = taken.grants
        if not grants:
            await asyncio.sleep(PAUSE_S)


async def main(url: str, role: str, path: Path) -> None:
    work = admit if role == "admit" else serve
    notes = Notes(path)
    async with connect(url) as redis:
        library = Library(redis, POOL, SETTINGS)
        await until_answered(library.start)
        await asyncio.gather(*(work(library, notes) for _ in range(AT_ONCE)))
        await asyncio.Event().wait()  # it has done its part


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
