"""Ends that Redis has not confirmed yet. Nothing leaves it but by an answer of Redis."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, islice

from forebay_shared.calls import Ending, Release
from forebay_shared.calls.library import HEAVY_ITEMS_PER_CALL, HEAVY_ITEMS_TOGETHER
from forebay_shared.calls.work import Blame
from forebay_shared.logs import event
from forebay_shared.metrics import Metrics
from forebay_shared.records import Result
from forebay_worker.answers import NOTHING
from forebay_worker.emit import BYTES_PER_CALL, CHUNKS_OF_ENDS
from forebay_worker.outcome import Dropped, Finished, GivenBack, Outcome, interrupted, trouble
from forebay_worker.runs import Run, Runs, weight
from forebay_worker.wake import Wake


class Outbox:
    """Endings and releases in order of their coming; wakes the take loop, which sends them."""

    def __init__(self, runs: Runs, wake: Wake, metrics: Metrics) -> None:
        self._runs = runs
        self._wake = wake
        self._metrics = metrics
        self._endings: deque[tuple[Run, Ending]] = deque()
        self._releases: deque[tuple[Run, Release]] = deque()

    @property
    def pending(self) -> bool:
        return bool(self._endings or self._releases)

    def put(self, run: Run, outcome: Outcome) -> None:
        """Take a run's outcome. The slot is free from here on, the lease is held on."""
        match outcome:
            case Dropped():
                self._runs.drop(run)
            case Finished(result):
                self._runs.end(run)
                self._endings.append((run, _ending(run, result)))
            case GivenBack(blame, result):
                self._runs.end(run)
                self._releases.append((run, _release(run, blame, result)))
        self._wake.up()

    def endings(self, most: int = HEAVY_ITEMS_PER_CALL) -> list[tuple[Run, Ending]]:
        """The oldest endings that fit into one call. They stay until `ended` tells of them."""
        batch: list[tuple[Run, Ending]] = []
        size = chunks = 0
        for item in islice(self._endings, most):
            size, chunks = size + _size(item[1]), chunks + len(item[1].chunks)
            if batch and (size > BYTES_PER_CALL or chunks > CHUNKS_OF_ENDS):
                break
            batch.append(item)
        return batch

    def releases(self) -> list[tuple[Run, Release]]:
        """The oldest releases that go together. They stay until `released` tells of them."""
        oldest = list(islice(self._releases, HEAVY_ITEMS_TOGETHER))
        sizes = accumulate(len(release.result.body) for _, release in oldest)
        return oldest[: max(1, sum(size <= BYTES_PER_CALL for size in sizes))]

    def ended(self, batch: Sequence[tuple[Run, Ending]], words: Sequence[str]) -> None:
        """Redis answered: the batch leaves. A gap comes back as an interrupted stream."""
        ends: Counter[tuple[str, str]] = Counter()
        for (run, ending), word in zip(batch, words, strict=True):
            self._endings.popleft()
            if word == "gap":
                run.forget_chunks()
                self._endings.append((run, _ending(run, interrupted().result)))
                continue
            self._runs.drop(run)
            if word == "lost":
                self._metrics.count("forebay_stale_writes_total", step="finish")
            else:
                state = "failed" if word == "large" else ending.result.state
                ends[run.grant.class_name, state] += 1
        self._count(batch, ends)

    def released(self, batch: Sequence[tuple[Run, Release]], words: Sequence[str]) -> None:
        """Redis answered: the batch leaves."""
        for (run, release), word in zip(batch, words, strict=True):
            self._releases.popleft()
            self._runs.drop(run)
            if word == "lost":
                self._metrics.count("forebay_stale_writes_total", step="release")
                continue
            self._metrics.count("forebay_released_total", blame=release.blame.value)
            event("release", id=run.grant.request_id, blame=release.blame.value, state=word)
            if word != "queued":
                labels = {"class": run.grant.class_name, "state": word}
                self._metrics.count("forebay_ended_total", 1, **labels)

    def give_up(self, batch: Sequence[tuple[Run, Ending]]) -> None:
        """The library cannot take these endings: give the requests back as failed attempts."""
        result = trouble("The answer could not be stored.")
        for run, _ in batch:
            self._endings.popleft()
            self._releases.append((run, _release(run, Blame.ATTEMPT, result)))

    def _count(self, batch: Sequence[tuple[Run, Ending]], ends: Counter[tuple[str, str]]) -> None:
        for (class_name, state), count in ends.items():
            labels = {"class": class_name, "state": state}
            self._metrics.count("forebay_ended_total", count, **labels)
        usages = [ending.result.usage for _, ending in batch]
        for kind in ("prompt", "cached", "output"):
            tokens = sum(getattr(usage, kind) for usage in usages)
            self._metrics.count("forebay_tokens_total", tokens, kind=kind)


def _ending(run: Run, result: Result) -> Ending:
    grant = run.grant
    if result.usage == NOTHING:  # cut off or refused: what it has used so far
        result = replace(result, usage=run.usage)
    return Ending(grant.request_id, grant.call, result, run.offset, tuple(run.chunks))


def _release(run: Run, blame: Blame, result: Result) -> Release:
    grant = run.grant
    jitter = random.uniform(-1, 1)
    return Release(grant.request_id, grant.call, blame, run.usage, result, jitter)


def _size(ending: Ending) -> int:
    return len(ending.result.body) + sum(map(weight, ending.chunks))
