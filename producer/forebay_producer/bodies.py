"""Reading a request's body: bounded however it is sent, and unpacked within the same bound."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from typing import Final

from starlette.types import Message, Receive

from forebay_shared.errors import BodyTooLarge, InvalidRequest

_GZIP_WBITS: Final = 31
_MOST_MEMBERS: Final = 64
"""A body of very many empty gzip members would cost time by their number squared."""


class ClientGone(Exception):
    """The client hung up before its request was complete, or before it was answered."""


class UnsupportedEncoding(InvalidRequest):
    """The body is packed in a way that Forebay does not unpack; send gzip or plain JSON."""

    status = 415


class UploadTimeout(InvalidRequest):
    """The body stopped coming; send it again on a new connection."""

    status, code = 408, "upload_timeout"


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is longer than {limit_bytes} bytes.")


async def read_body(
    receive: Receive, headers: Mapping[str, str], limit_bytes: int, silence_s: float
) -> bytes:
    """The whole body, unpacked, of at most `limit_bytes`.

    Raises BodyTooLarge as soon as that is certain, InvalidRequest for what cannot be unpacked,
    UploadTimeout after `silence_s` without a byte, and ClientGone when the client hangs up first.
    """
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip"):
        raise UnsupportedEncoding("Content-Encoding must be gzip or absent.")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit_bytes:
        raise _too_large(limit_bytes)
    raw = await _read(receive, limit_bytes, silence_s)
    return _unpack(raw, limit_bytes) if encoding.endswith("gzip") else raw


async def _read(receive: Receive, limit_bytes: int, silence_s: float) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        message = await _next(receive, silence_s)
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        total += len(part)
        if total > limit_bytes:
            raise _too_large(limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _next(receive: Receive, silence_s: float) -> Message:
    try:
        async with asyncio.timeout(silence_s):
            return await receive()
    except TimeoutError:
        raise UploadTimeout(f"No byte of the body came for {silence_s:g} s.") from None


def _unpack(packed: bytes, limit_bytes: int) -> bytes:
    """Unpack gzip, all its members, never holding more than one byte above the limit."""
    whole = b""
    for _ in range(_MOST_MEMBERS):
        member = zlib.decompressobj(_GZIP_WBITS)
        try:
            whole += member.decompress(packed, limit_bytes + 1 - len(whole))
        except zlib.error:
            raise InvalidRequest("The body is not valid gzip.") from None
        if len(whole) > limit_bytes:
            raise _too_large(limit_bytes)
        if not member.eof:
            raise InvalidRequest("The gzip body is cut off.")
        packed = member.unused_data
        if not packed:
            return whole
    raise InvalidRequest(f"The gzip body has more than {_MOST_MEMBERS} members.")
