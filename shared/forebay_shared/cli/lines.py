"""Lines out of pieces, however the pieces fall and however long a line is."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator


async def split_lines(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Lines without their end (LF or CRLF), and what follows the last one if it is not empty."""
    rest: list[bytes] = []
    async for piece in pieces:
        first, *others = piece.split(b"\n")
        rest.append(first)
        for begun in others:
            yield b"".join(rest).removesuffix(b"\r")
            rest = [begun]
    if last := b"".join(rest):
        yield last
