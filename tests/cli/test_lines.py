"""Lines do not depend on how their bytes arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_shared.cli.lines import split_lines


async def arriving(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def split(pieces: list[bytes]) -> list[bytes]:
    """`split_lines` never waits here, so it can be driven by hand."""

    async def collect() -> list[bytes]:
        return [line async for line in split_lines(arriving(pieces))]

    work = collect()
    with pytest.raises(StopIteration) as ended:
        work.send(None)
    lines: list[bytes] = ended.value.value
    return lines


@given(st.lists(st.text(alphabet="ab\n").map(str.encode)))
def test_pieces_make_no_difference(pieces: list[bytes]) -> None:
    """As if all had come at once."""
    whole = b"".join(pieces).split(b"\n")
    assert split(pieces) == (whole if whole[-1] else whole[:-1])


def test_both_line_ends() -> None:
    """LF and CRLF, also when the two bytes come apart."""
    assert split([b"a\r", b"\nb\n", b"\r\nc"]) == [b"a", b"b", b"", b"c"]
