"""The read of the bells: one at a time, of the classes asked for last, whenever that changes."""

from __future__ import annotations

import asyncio

import pytest
from tests.worker.desk import Desk

from forebay_shared.connect import connect_blocking
from forebay_shared.metrics import Metrics
from forebay_worker.bells import BLOCK_S, Bells
from forebay_worker.link import Link
from forebay_worker.wake import Wake

pytestmark = pytest.mark.anyio


async def test_other_bells_are_heard_at_once_whenever_the_classes_change(desk: Desk) -> None:
    """A read may be ended at any of its steps: the next one has the connection soon."""
    wake = Wake()
    redis = connect_blocking(desk.url, BLOCK_S)
    bells = Bells(redis, desk.keys, Link(Metrics()), wake)
    for turns in [*range(40), *range(40)]:
        bells.listen(["normal"])
        for _ in range(turns):
            await asyncio.sleep(0)
        bells.listen(["high"])
        bells.obeyed()
        await desk.redis.rpush(desk.keys.bell("high"), "1")
        await asyncio.wait_for(wake.wait(), 1)
        assert bells.rung
    bells.hush()
    await redis.aclose()
