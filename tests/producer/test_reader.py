"""What a reader makes of replies, without Redis."""

from __future__ import annotations

import asyncio

import pytest

from forebay_producer.reader import Left, Reader
from forebay_shared.calls import Seen
from forebay_shared.calls.requests import UNKNOWN

pytestmark = pytest.mark.anyio


def seen(
    state: str = "running", offset: int = 0, *chunks: tuple[int, bytes], ended: bool = False
) -> Seen:
    return Seen("id", state, offset, b"{}" if ended else b"", list(chunks), ended)


async def test_a_result_reader_ends_with_the_state() -> None:
    reader = Reader("id")
    assert not reader.take_in(seen("queued"))
    assert not reader.take_in(seen("running", 5))
    assert not reader.over
    assert not reader.take_in(seen("done", 5, ended=True))
    assert (reader.state, reader.result, reader.ended) == ("done", b"{}", True)


async def test_a_stream_reader_ends_with_the_mark_and_not_with_the_result() -> None:
    reader = Reader("id", have=0)
    assert reader.take_in(seen("done", 2, (1, b"a")))
    assert not reader.over
    assert not reader.take_in(seen("done", 2, (2, b"b"), ended=True))
    assert reader.over
    assert [reader.next_chunk(), reader.next_chunk()] == [(1, b"a"), (2, b"b")]


async def test_a_result_that_did_not_fit_is_asked_for_again() -> None:
    reader = Reader("id")
    assert [reader.take_in(seen("done"), cut=True) for _ in range(9)] == [True] * 9
    assert not reader.over
    assert not reader.take_in(seen("done", ended=True), cut=True)
    assert (reader.state, reader.result, reader.left) == ("done", b"{}", None)


async def test_full_replies_say_nothing_of_chunks_that_they_lack() -> None:
    reader = Reader("id", have=1)
    assert all(reader.take_in(seen("done", 5), cut=True) for _ in range(9))
    assert not reader.over


async def test_more_is_asked_for_while_the_record_is_ahead() -> None:
    reader = Reader("id", have=0)
    assert reader.take_in(seen("running", 3, (1, b"a"), (2, b"b")))
    assert not reader.take_in(seen("running", 3, (3, b"c")))
    assert reader.have == 3


async def test_a_missing_record_counts_only_once_the_request_is_stored() -> None:
    reader = Reader("id")
    reader.take_in(seen(""))
    assert not reader.over
    reader.armed = True
    reader.take_in(seen(""))
    assert reader.left is Left.VANISHED


async def test_chunks_that_are_gone_end_the_reader_instead_of_asking_for_ever() -> None:
    reader = Reader("id", have=1)
    asked = [reader.take_in(seen("done", 5)) for _ in range(4)]
    assert asked == [True, True, False, False]
    assert reader.left is Left.VANISHED


async def test_missing_chunks_of_a_running_stream_are_left_to_the_floor() -> None:
    reader = Reader("id", have=1)
    assert [reader.take_in(seen("running", 5)) for _ in range(4)] == [True, True, False, False]
    assert not reader.over


async def test_a_reader_is_full_by_bytes() -> None:
    reader = Reader("id", have=0, most_bytes=4)
    reader.take_in(seen("running", 1, (1, b"abc")))
    assert not reader.full
    reader.take_in(seen("running", 2, (2, b"d")))
    assert reader.full
    reader.next_chunk()
    assert not reader.full


async def test_the_first_reason_to_leave_counts_and_none_after_the_end() -> None:
    reader = Reader("id")
    reader.leave(Left.DRAIN)
    reader.leave(Left.CLIENT)
    assert reader.left is Left.DRAIN
    ended = Reader("id", UNKNOWN)
    ended.take_in(seen("done", ended=True))
    ended.leave(Left.CLIENT)
    assert ended.left is None


async def test_news_wakes_and_silence_does_not() -> None:
    reader = Reader("id", have=0)
    assert not await reader.news(0.01)
    asyncio.get_running_loop().call_later(0.01, reader.take_in, seen("running", 1, (1, b"a")))
    assert await reader.news(5)
    reader.next_chunk()
    asyncio.get_running_loop().call_later(0.01, reader.leave, Left.CLIENT)
    assert await reader.news(5)
    assert await reader.news(0)


async def test_chunks_that_redis_has_lost_end_the_stream() -> None:
    """After a failover the record is behind what the client has read: nothing may follow that."""
    reader = Reader("id", have=0)
    assert not reader.take_in(seen("running", 2, (1, b"a"), (2, b"b")))
    assert not reader.take_in(seen("running", 1))
    assert reader.left is Left.VANISHED


async def test_a_client_that_names_an_offset_ahead_waits_for_it() -> None:
    """It may have read further than this replica: that is no sign of a loss."""
    reader = Reader("id", have=7)
    reader.take_in(seen("running", 3))
    assert not reader.over
