"""The ledger counts ends and not calls: with the product's own callers and clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from forebay_shared.calls import Admission, Ending, Intake, Leases, Library, Operator, Take
from forebay_shared.connect import connect
from forebay_shared.ids import new_request_id
from forebay_shared.records import Envelope, Result, Usage

pytestmark = pytest.mark.anyio

DONE = Result("done", 200, usage=Usage(3, 0, 7), body=b"answer")


@pytest.fixture
async def founded(redis_url: str) -> AsyncIterator[Library]:
    async with connect(redis_url) as redis:
        library = Library(redis)
        await library.start()
        yield library


async def test_ends_are_counted_once_whoever_tells_of_them(founded: Library) -> None:
    """A repeat counts nothing, and neither does a worker that had no lease, by finish and take."""
    leases, name = Leases(founded), new_request_id("default")
    one = Admission(name, "normal", "ann", Envelope("/v1/completions", "m", b"{}"), 60_000)
    for _ in range(2):
        await Intake(founded).admit([one])
    take = Take("w1", 1, 4, 4, {"normal": 4})
    await leases.take(take)
    ending = Ending(name, 1, DONE, 0, ())
    assert await leases.finish("w2", [ending]) == ["lost"]
    for call in (2, 3):
        assert await leases.finish("w1", [ending]) == ["ok"]
        again = Take("w1", call, 4, 4, {"normal": 4})
        assert (await leases.finish_take([ending], again))[0] == ["ok"]
    status = await Operator(founded).status()
    assert (status["ledger"], status["queued"], status["running"]) == (
        {"accepted": 1, "done": 1}, 0, 0,
    )  # fmt: skip
