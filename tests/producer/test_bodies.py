"""Reading bodies: bounded however they are sent (chunked, packed), and in what units."""

from __future__ import annotations

import gzip

import pytest
from starlette.types import Message, Receive

from forebay_producer.bodies import ClientGone, UnsupportedEncoding, read_body
from forebay_shared.errors import BodyTooLarge, InvalidRequest

pytestmark = pytest.mark.anyio
LIMIT = 1000


def sending(*parts: bytes, complete: bool = True) -> Receive:
    """A client that sends these parts, and then is done or hangs up."""
    messages: list[Message] = [
        {"type": "http.request", "body": part, "more_body": True} for part in parts
    ]
    if complete:
        messages[-1]["more_body"] = False
    messages.append({"type": "http.disconnect"})

    async def receive() -> Message:
        return messages.pop(0)

    return receive


@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
async def test_a_body_up_to_the_limit_is_read_whole(size: int) -> None:
    assert await read_body(sending(b"x" * size), {}, LIMIT, 1.0) == b"x" * size


async def test_the_limit_counts_bytes_and_not_characters() -> None:
    text = "é" * (LIMIT // 2)
    assert await read_body(sending(text.encode()), {}, LIMIT, 1.0) == text.encode()
    with pytest.raises(BodyTooLarge):
        await read_body(sending((text + "é").encode()), {}, LIMIT, 1.0)


async def test_a_body_in_parts_is_joined() -> None:
    assert await read_body(sending(b"a", b"", b"bc"), {}, LIMIT, 1.0) == b"abc"


async def test_a_body_without_length_is_refused_as_soon_as_it_is_too_long() -> None:
    receive = sending(b"x" * LIMIT, b"x", b"never read", complete=False)
    with pytest.raises(BodyTooLarge):
        await read_body(receive, {}, LIMIT, 1.0)
    assert (await receive())["body"] == b"never read"


async def test_a_declared_length_above_the_limit_is_refused_unread() -> None:
    receive = sending(b"x")
    with pytest.raises(BodyTooLarge):
        await read_body(receive, {"content-length": str(LIMIT + 1)}, LIMIT, 1.0)
    assert (await receive())["body"] == b"x"


async def test_a_client_that_hangs_up_is_told_apart() -> None:
    with pytest.raises(ClientGone):
        await read_body(sending(b"half", complete=False), {}, LIMIT, 1.0)


@pytest.mark.parametrize("name", ["gzip", "x-gzip", "GZIP"])
async def test_gzip_is_unpacked(name: str) -> None:
    packed = gzip.compress(b"a" * LIMIT)
    assert await read_body(sending(packed), {"content-encoding": name}, LIMIT, 1.0) == b"a" * LIMIT


async def test_gzip_of_several_members_is_unpacked_whole() -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"two")
    read = await read_body(sending(packed), {"content-encoding": "gzip"}, LIMIT, 1.0)
    assert read == b"one two"


async def test_a_gzip_bomb_is_refused_without_unpacking_it() -> None:
    bomb = gzip.compress(gzip.compress(b"0" * 50_000_000))
    inner = gzip.decompress(bomb)
    with pytest.raises(BodyTooLarge):
        await read_body(sending(inner), {"content-encoding": "gzip"}, len(inner), 1.0)


async def test_gzip_one_byte_above_the_limit_is_refused() -> None:
    packed = gzip.compress(b"a" * (LIMIT + 1))
    with pytest.raises(BodyTooLarge):
        await read_body(sending(packed), {"content-encoding": "gzip"}, LIMIT, 1.0)


async def test_very_many_gzip_members_are_refused() -> None:
    packed = gzip.compress(b"") * 1000
    with pytest.raises(InvalidRequest, match="members"):
        await read_body(sending(packed), {"content-encoding": "gzip"}, len(packed), 1.0)


@pytest.mark.parametrize("packed", [b"no gzip", gzip.compress(b"cut off")[:-4], b""])
async def test_broken_gzip_is_a_clear_error(packed: bytes) -> None:
    with pytest.raises(InvalidRequest, match="gzip"):
        await read_body(sending(packed), {"content-encoding": "gzip"}, LIMIT, 1.0)


async def test_another_encoding_is_refused() -> None:
    with pytest.raises(UnsupportedEncoding):
        await read_body(sending(b"x"), {"content-encoding": "br"}, LIMIT, 1.0)
