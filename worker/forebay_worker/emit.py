"""Emitting: chunks of all streams of this worker, written together.

The first token goes at once. After that there is a flush each 20 ms, and up to each 100 ms where
Redis takes long to answer, because then it has many streams to carry. Chunks stay with their run
until Redis has confirmed them, so a call that failed is simply made again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import chain

from forebay_shared.calls import Emission, Leases
from forebay_shared.calls.library import ITEMS_PER_CALL
from forebay_shared.metrics import Metrics
from forebay_shared.settings import MIB
from forebay_worker.link import Link
from forebay_worker.runs import Kept, Run, Stop, weight

FLUSH_S = 0.020
MOST_FLUSH_S = 0.100
CALLS_PER_SHARE = 10
"""A call to Redis may take a tenth of the time between two flushes."""
BYTES_PER_CALL = MIB
STREAMS_PER_CALL = 16
"""To append chunks is lighter work than to grant or to end."""
CHUNKS_PER_CALL = 100
"""Of all streams together, so that no call takes 5 ms of Redis."""
CHUNKS_OF_ENDS = 40
"""That requests may still bring along when they end: a call ends and grants others beside them."""

Batched = tuple[Run, list[Kept]]

_STOPS = {"lost": Stop.LOST, "gap": Stop.GAP, "large": Stop.LARGE}


class Emitter:
    """Writes chunks; a run whose chunks are refused is stopped."""

    def __init__(self, worker: str, leases: Leases, link: Link, metrics: Metrics) -> None:
        self._worker = worker
        self._leases = leases
        self._link = link
        self._metrics = metrics
        self._dirty: dict[Run, None] = {}
        self._urgent: dict[Run, None] = {}
        self._some = asyncio.Event()
        self._hurry = asyncio.Event()
        self._flushed_s = float("-inf")
        self.interval_s = FLUSH_S

    def soon(self, run: Run) -> None:
        """Write the run's chunks with the next flush."""
        self._dirty[run] = None
        self._some.set()

    def now(self, run: Run) -> None:
        """Write the run's chunks at once: a client waits for its first token."""
        self._urgent[run] = None
        self._some.set()
        self._hurry.set()

    async def until_fits(self, run: Run) -> None:
        """Return when the chunks left are few enough to go with the end of the request."""
        while not fits(run):
            run.room = asyncio.Event()
            self.now(run)
            await run.room.wait()

    async def once(self) -> None:
        """One flush, when it is due."""
        await self._some.wait()
        await self._due()
        await self.flush()

    async def _due(self) -> None:
        if self._urgent:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._flushed_s + self.interval_s):
                await self._hurry.wait()

    async def flush(self) -> None:
        """Write what is due, in calls made at the same time; what does not fit waits."""
        runs = self._choose(asyncio.get_running_loop().time())
        batches = _batches(runs)
        # What is sent is settled here: before a call begins its run may drop what it has.
        calls = [self._write(batch, [_emission(*one) for one in batch]) for batch in batches]
        # All answers are awaited: a run must not be in a new call while an old one is under way.
        done = await asyncio.gather(*calls, return_exceptions=True)
        for error in done:
            if error is not None:
                raise error
        self._tidy(runs, batches)

    async def _write(self, batch: list[Batched], emissions: list[Emission]) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        words = await self._link.ask("emit", lambda: self._leases.emit(self._worker, emissions))
        self._pace(loop.time() - started_s)
        for (run, chunks), word in zip(batch, words, strict=True):
            self._settle(run, len(chunks), word)

    def _choose(self, now_s: float) -> list[Run]:
        """The urgent ones between two flushes, all when one is due."""
        if now_s < self._flushed_s + self.interval_s:
            return list(self._urgent)
        self._flushed_s = now_s
        return [*self._urgent, *(run for run in self._dirty if run not in self._urgent)]

    def _settle(self, run: Run, count: int, word: str) -> None:
        if run.ended:
            return  # its last chunks go with its end, which is judged by itself
        if word == "ok":
            run.confirm(count)
            self._metrics.count("forebay_emitted_chunks_total", count)
        else:
            if word == "lost":
                self._metrics.count("forebay_stale_writes_total", step="emit")
            run.stop(_STOPS[word])

    def _tidy(self, runs: list[Run], batches: list[list[Batched]]) -> None:
        """Forget those with nothing left to write; what came meanwhile waits for its flush."""
        for run, _ in chain.from_iterable(batches):
            self._dirty[run] = None
            if fits(run):
                self._urgent.pop(run, None)
            else:
                self._urgent[run] = None  # much has piled up while Redis was away
        for run in runs:
            if not _waits(run):
                self._urgent.pop(run, None)
                self._dirty.pop(run, None)
        if not self._urgent:
            self._hurry.clear()
            if not self._dirty:
                self._some.clear()

    def _pace(self, took_s: float) -> None:
        aim_s = min(MOST_FLUSH_S, max(FLUSH_S, CALLS_PER_SHARE * took_s))
        self.interval_s += (aim_s - self.interval_s) / 4


def _emission(run: Run, chunks: list[Kept]) -> Emission:
    run.offered = max(run.offered, run.offset + len(chunks))
    grant = run.grant
    return Emission(grant.request_id, grant.call, run.offset, run.usage, chunks)


def fits(run: Run) -> bool:
    """Whether the run's end can bring along all chunks that it has left."""
    return run.chunk_bytes <= BYTES_PER_CALL and len(run.chunks) <= CHUNKS_OF_ENDS


def _waits(run: Run) -> bool:
    return bool(run.chunks) and not run.ended and run.stopped is None


def _batches(runs: list[Run]) -> list[list[Batched]]:
    """The runs' chunks in as many calls as they need; of each run what one call carries."""
    batches: list[list[Batched]] = []
    room = left = 0
    for run in filter(_waits, runs):
        chunks = _cut(run)
        size = sum(map(weight, chunks))
        if size > room or len(chunks) > left or len(batches[-1]) == STREAMS_PER_CALL:
            batches.append([])
            room, left = BYTES_PER_CALL, CHUNKS_PER_CALL
        batches[-1].append((run, chunks))
        room, left = room - size, left - len(chunks)
    return batches


def _cut(run: Run) -> list[Kept]:
    """The first chunks, as many as fit into one call; at least one."""
    chunks: list[Kept] = []
    room = BYTES_PER_CALL
    for chunk in run.chunks[:ITEMS_PER_CALL]:
        room -= weight(chunk)
        if room < 0 and chunks:
            break
        chunks.append(chunk)
    return chunks
