"""A call repairs what a new or emptied server lacks, and tells what it cannot repair."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from forebay_shared.calls import Library, Operator
from forebay_shared.calls.library import Call
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


async def test_calls_together_are_repaired_and_served_in_order(redis: Redis) -> None:
    """The answers are those of the calls; what one lacks is mended, and all are repeated."""
    library = Library(redis)
    await library.start()
    for damage in (redis.flushall, redis.function_flush):
        await damage()
        first, second, third = await library.together(
            [("order", ["w", "one"]), ("order", ["w", "two"]), ("show", ["nobody", ""])]
        )
        assert (first, second, third) == (b"ok", b"ok", [])
        assert await redis.lrange(library.keys.control("w"), 0, -1) == [b"one", b"two"]
        await redis.delete(library.keys.control("w"))


async def test_a_refused_call_spares_those_that_go_with_it(redis: Redis) -> None:
    library = Library(redis)
    await library.start()
    calls: list[Call] = [("order", ["w", "one"]), ("order", ["w"]), ("order", ["w", "two"])]
    first, error, third = await library.together(calls)
    assert (first, third) == (b"ok", b"ok")
    assert isinstance(error, ResponseError) and str(error).startswith("BADCALL")


async def test_cancelled_calls_leave_no_answer_to_others(redis: Redis) -> None:
    """Their connection goes with them: the next call on it would read what was meant for them."""
    library = Library(redis)
    await library.start()
    for turn in range(200):
        wanted = [asyncio.create_task(library.together([("status", [])] * 3)) for _ in range(4)]
        for task in wanted[: turn % 4]:
            for _ in range(turn % 7):
                await asyncio.sleep(0)
            task.cancel()
        assert await redis.echo(f"{turn}") == b"%d" % turn
        await asyncio.wait(wanted)
        assert await redis.echo(f"{turn}") == b"%d" % turn
