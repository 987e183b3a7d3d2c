"""What this worker holds: one Run for each granted request, from its grant to its confirmed end."""

from __future__ import annotations

import asyncio
from enum import Enum

from forebay_shared.calls import Grant, Held
from forebay_shared.records import Usage

NOT_CALLED = float("inf")


Kept = tuple[bytes, bytes]
"""A chunk as the client gets it, and its mark."""


def weight(chunk: Kept) -> int:
    """Bytes that a chunk and its mark take in a call."""
    return len(chunk[0]) + len(chunk[1])


class Stop(Enum):
    """Why a run is stopped from outside."""

    LOST = "the lease is not ours any more: write nothing"
    RECALLED = "give it back without blame: the worker leaves"
    GAP = "Redis has lost chunks of its output: it cannot go on exactly"
    WEDGED = "its engine answers nothing any more: give it back as crashed"
    LARGE = "its output is longer than the settings allow"


class Run:
    """One request under one lease.

    `chunks` are those that Redis has not confirmed, in order; `offset` counts those before them.
    `offered` is the offset up to which chunks were ever sent, confirmed or not. `heard_s`: when the
    engine last sent something for it, or was called, by the loop's clock; NOT_CALLED while it has
    nothing to answer. `continues`: a later attempt can go on after what was delivered.
    """

    __slots__ = (
        "chunk_bytes", "chunks", "continues", "ended", "grant", "heard_s", "offered", "offset",
        "output_bytes", "room", "started", "stopped", "task", "usage",
    )  # fmt: skip

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.usage = Usage()
        self.offset = grant.offset
        self.offered = grant.offset
        self.chunks: list[Kept] = []
        self.chunk_bytes = 0
        self.output_bytes = 0
        self.heard_s = NOT_CALLED
        self.room: asyncio.Event | None = None
        self.task: asyncio.Task[None] | None = None
        self.continues = grant.offset > 0
        self.started = False
        self.ended = False
        self.stopped: Stop | None = None

    @property
    def held(self) -> Held:
        return Held(self.grant.request_id, self.grant.call, self.usage)

    @property
    def delivered(self) -> bool:
        """Whether a client may have seen some of the output."""
        return self.offered > 0

    @property
    def stuck(self) -> bool:
        """Whether it can neither be run again nor be gone on with: given back it would end."""
        return self.delivered and not self.continues

    def add(self, chunk: bytes, mark: bytes = b"") -> None:
        """Keep a chunk and its mark until Redis has confirmed them."""
        self.chunks.append((chunk, mark))
        self.chunk_bytes += len(chunk) + len(mark)
        self.output_bytes += len(chunk)

    def confirm(self, count: int) -> None:
        """The first `count` chunks are in Redis."""
        self.offset += count
        self.chunk_bytes -= sum(map(weight, self.chunks[:count]))
        del self.chunks[:count]
        if self.room is not None:
            self.room.set()

    def forget_chunks(self) -> None:
        """Write none of the chunks that are left."""
        self.chunks, self.chunk_bytes, self.offset = [], 0, 0

    def stop(self, why: Stop) -> None:
        """Stop the engine call at once; the run then ends as `why` says. Ended runs are left."""
        if self.ended or self.stopped:
            return
        self.stopped = why
        # A task cancelled before its first step would never run its end: it looks at `stopped`.
        if self.started and self.task is not None:
            self.task.cancel()


class Runs:
    """All runs of this worker. `active` of them still run, the others' ends wait for Redis."""

    def __init__(self) -> None:
        self._by_id: dict[str, Run] = {}
        self.active = 0
        self._peak = 0
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, grant: Grant) -> tuple[Run, Run | None]:
        """A new run, and the one of the same request that was still there: its lease is lost."""
        old = self._by_id.get(grant.request_id)
        run = self._by_id[grant.request_id] = Run(grant)
        self.active += 1
        self._peak = max(self._peak, self.active)
        self.empty.clear()
        return run, old

    def find(self, request_id: str, call: int) -> Run | None:
        """The run of this request under this very lease."""
        run = self._by_id.get(request_id)
        return run if run and run.grant.call == call else None

    def peak(self) -> int:
        """Most that ran at once since this was last asked."""
        peak, self._peak = self._peak, self.active
        return peak

    def held(self) -> list[Run]:
        """All whose leases are to be renewed."""
        return list(self._by_id.values())

    def running(self) -> list[Run]:
        """Those that have not ended."""
        return [run for run in self._by_id.values() if not run.ended]

    def end(self, run: Run) -> None:
        """The engine has no more to do for it: its slot is free, its lease still renewed."""
        run.ended = True
        self.active -= 1

    def drop(self, run: Run) -> None:
        """Its end is confirmed, or its lease is lost: forget it."""
        if not run.ended:
            self.end(run)
        if self._by_id.get(run.grant.request_id) is run:
            del self._by_id[run.grant.request_id]
        if not self._by_id:
            self.empty.set()
