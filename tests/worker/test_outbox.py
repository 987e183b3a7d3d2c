"""How many ends one call carries, and how many releases go together."""

from __future__ import annotations

import pytest

from forebay_shared.calls import Grant
from forebay_shared.calls.work import Blame
from forebay_shared.metrics import Metrics
from forebay_shared.records import Result
from forebay_worker.emit import BYTES_PER_CALL
from forebay_worker.outbox import Outbox
from forebay_worker.outcome import Finished, GivenBack
from forebay_worker.runs import Runs
from forebay_worker.wake import Wake

HALF = BYTES_PER_CALL // 2


@pytest.mark.parametrize(
    ("ends", "calls"),
    [
        ([(0, 10)] * 5, [3, 2]),
        ([(20, 10)] * 3, [2, 1]),
        ([(40, 10), (1, 10)], [1, 1]),
        ([(0, HALF), (0, HALF), (0, 1)], [2, 1]),
        ([(0, 2 * BYTES_PER_CALL), (0, 1)], [1, 1]),
    ],
    ids=["three ends", "forty chunks", "forty of one", "a mebibyte", "a large one alone"],
)
def test_a_call_carries_few_ends(ends: list[tuple[int, int]], calls: list[int]) -> None:
    """So that none takes Redis 5 ms; of each end: its unsent chunks, its body's bytes."""
    runs = Runs()
    outbox = Outbox(runs, Wake(), Metrics())
    for number, (chunks, size) in enumerate(ends):
        run, _ = runs.add(Grant(f"p.{number}", 1, "normal", "t", 1, 0, 0, 0, False, 1, 1, b"", b""))
        for _ in range(chunks):
            run.add(b"")
        outbox.put(run, Finished(Result("done", 200, body=b"x" * size)))
    found = []
    while batch := outbox.endings():
        outbox.ended(batch, ["ok"] * len(batch))
        found.append(len(batch))
    assert found == calls


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [([10] * 15, [12, 3]), ([HALF, HALF, 1], [2, 1]), ([2 * BYTES_PER_CALL, 1], [1, 1])],
    ids=["four calls of three", "a mebibyte", "a large one alone"],
)
def test_few_releases_go_together(sizes: list[int], calls: list[int]) -> None:
    """Each may bring the engine's last words along, in case that this attempt was the last."""
    runs = Runs()
    outbox = Outbox(runs, Wake(), Metrics())
    for number, size in enumerate(sizes):
        run, _ = runs.add(Grant(f"p.{number}", 1, "normal", "t", 1, 0, 0, 0, False, 1, 1, b"", b""))
        result = Result("failed", 500, body=b"x" * size)
        outbox.put(run, GivenBack(Blame.ATTEMPT, result))
    found = []
    while batch := outbox.releases():
        outbox.released(batch, ["queued"] * len(batch))
        found.append(len(batch))
    assert found == calls
