"""A call repairs what a new or emptied server lacks, and tells what it cannot repair."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from forebay_shared.calls import Library, Operator
from forebay_shared.connect import connect
from forebay_shared.errors import LayoutMismatch

pytestmark = pytest.mark.anyio


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


async def test_a_call_to_an_empty_server_loads_and_founds(redis: Redis) -> None:
    """FLUSHALL and FUNCTION FLUSH together: the next call works, whichever it is."""
    library = Library(redis)
    await library.start()
    await redis.flushall()
    await redis.function_flush()
    assert (await Operator(library).status())["queued"] == 0


async def test_another_layout_is_refused(redis: Redis) -> None:
    """Stored keys of another layout are left alone."""
    library = Library(redis)
    await library.start()
    await redis.set(library.keys.layout, "0")
    with pytest.raises(LayoutMismatch):
        await Operator(library).status()
    assert await redis.get(library.keys.layout) == b"0"
