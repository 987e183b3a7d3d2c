"""A fleet in simulated time over the real library: who is granted when, and what it used.

Fairness depends on the order of takes and ends only, so service is simulated: a request of n output
tokens holds a slot for n steps of one clock, and the next event is the earliest end. 3,000 requests
take about a second.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pytest
from redis.asyncio import Redis

from forebay_shared.calls import Admission, Admitted, Ending, Grant, Intake, Leases, Library, Take
from forebay_shared.calls import library as library_caller
from forebay_shared.calls.work import Taken
from forebay_shared.ids import new_request_id
from forebay_shared.library import LIBRARY_NAME, source
from forebay_shared.records import Envelope, Result, Usage
from forebay_shared.settings import ClassSettings, PoolSettings

BODY = b'{"prompt":"x"}'
PROMPT_TOKENS = 10
LONG_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Job:
    """One request: who is charged, how long it will be, and what its tenant's estimate is."""

    class_name: str
    tenant: str
    output: int
    estimate: int = -1
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Served:
    """A job that was granted, in the order of grants, with its cost in tokens."""

    job: Job
    cost: float


def settings_for(weights: dict[str, float]) -> PoolSettings:
    """Classes of these weights, no limits in the way, leases that never run out in a test."""
    classes = tuple(
        ClassSettings(name=name, weight=weight, depth=1_000_000) for name, weight in weights.items()
    )
    return PoolSettings(
        classes=classes, depth=1_000_000, lease_ms=LONG_MS, worker_ttl_ms=LONG_MS,
        tenant_bytes=1 << 40,
    )  # fmt: skip


class Plant:
    """Workers × slots over one pool."""

    def __init__(self, redis: Redis, settings: PoolSettings, workers: int, slots: int) -> None:
        self._library = Library(redis, settings=settings)
        self._settings = settings
        self._workers = [f"w{number}" for number in range(workers)]
        self._slots = slots
        self._jobs: dict[str, Job] = {}
        self._free = dict.fromkeys(self._workers, slots)
        self._calls = dict.fromkeys(self._workers, 0)
        self._running: list[tuple[float, int, str, Grant]] = []
        self._now = 0.0
        self.served: list[Served] = []
        self.done: list[Served] = []
        """The same in the order of ends."""

    async def admit(self, jobs: Iterable[Job]) -> None:
        """Queue jobs in this order."""
        rows = list(jobs)
        for start in range(0, len(rows), 100):
            page = [self._admission(job) for job in rows[start : start + 100]]
            answers = await Intake(self._library).admit(page)
            assert all(isinstance(answer, Admitted) for answer in answers), answers

    def _admission(self, job: Job) -> Admission:
        request_id = new_request_id("default")
        self._jobs[request_id] = job
        envelope = Envelope("/v1/completions", "m", BODY)
        return Admission(
            request_id, job.class_name, job.tenant, envelope, LONG_MS, weight=job.weight,
            output_estimate=job.estimate,
        )  # fmt: skip

    async def start(self) -> None:
        await self._library.start()

    def forget(self) -> None:
        """Start counting anew; nothing may run."""
        assert not self._running
        self.served, self.done = [], []

    async def run(self, enough: Callable[[], bool]) -> list[Served]:
        """Serve until `enough()` or nothing is left; all that was granted, in order of grants."""
        leases = Leases(self._library)
        for worker in self._workers:
            self._note(worker, await leases.take(self._take(worker)))
        while self._running and not enough():
            worker, endings = self._next_ends()
            self._free[worker] += len(endings)
            _, taken = await leases.finish_take(endings, self._take(worker))
            self._note(worker, taken)
        return self.served

    def _take(self, worker: str) -> Take:
        self._calls[worker] += 1
        free = self._free[worker]
        names = self._settings.class_names()
        return Take(worker, self._calls[worker], self._slots, free, dict.fromkeys(names, free))

    def _note(self, worker: str, taken: Taken) -> None:
        for grant in taken.grants:
            job = self._jobs[grant.request_id]
            row = (self._now + job.output, len(self.served), worker, grant)
            heapq.heappush(self._running, row)
            self._free[worker] -= 1
            price = self._settings.cost
            cost = PROMPT_TOKENS * price.prompt + job.output * price.output
            self.served.append(Served(job, cost))

    def _next_ends(self) -> tuple[str, list[Ending]]:
        """The earliest end, and what ends at the same time on the same worker."""
        self._now, _, worker, _ = self._running[0]
        endings = []
        while self._running and self._running[0][0] == self._now and self._running[0][2] == worker:
            _, number, _, grant = heapq.heappop(self._running)
            endings.append(self._ending(grant))
            self.done.append(self.served[number])
        return worker, endings

    def _ending(self, grant: Grant) -> Ending:
        usage = Usage(PROMPT_TOKENS, 0, self._jobs[grant.request_id].output)
        return Ending(grant.request_id, grant.call, Result("done", 200, usage=usage))


def shares(served: Sequence[Served], party: Callable[[Job], str]) -> dict[str, float]:
    """Percent of the tokens by party."""
    tokens: dict[str, float] = {}
    for one in served:
        name = party(one.job)
        tokens[name] = tokens.get(name, 0) + one.cost
    total = sum(tokens.values())
    return {name: 100 * value / total for name, value in tokens.items()}


def use_mutant(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Let this process use a library with one text replaced, under a name of its own."""
    text = source()
    assert text.count(old) == 1, f"{old!r} stands there {text.count(old)} times"
    real = LIBRARY_NAME.rpartition("_")[2]
    mine = hashlib.sha256(new.encode()).hexdigest()[: len(real)]
    mutant = text.replace(old, new).replace(real, mine)
    monkeypatch.setattr(library_caller, "source", lambda: mutant)
    monkeypatch.setattr(library_caller, "function_name", lambda step: f"forebay_{step}_{mine}")
