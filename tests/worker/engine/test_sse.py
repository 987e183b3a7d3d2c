"""Server-sent events, cut anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_worker.engine.sse import EventReader

STREAM = (
    b": waiting\n"
    b'data: {"a":"\xc3\xa9"}\n\n'
    b"event: message\nid: 7\ndata:no blank\n\n"
    b"\n\n"
    b"data: one\ndata:  two\ndata\ndata: four\n\n"
    b"retry: 10\n\n"
    b"data:\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"a":"\xc3\xa9"}', b"no blank", b"one\n two\n\nfour", b"[DONE]"]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@given(cuts=st.lists(st.integers(0, len(STREAM) * 2), max_size=12))
def test_events_are_the_same_however_they_are_cut(line_end: bytes, cuts: list[int]) -> None:
    """Reads end anywhere, also between \\r and \\n."""
    wire = STREAM.replace(b"\n", line_end)
    reader = EventReader()
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    got = [e for a, b in itertools.pairwise(edges) for e in reader.feed(wire[a:b])]
    assert got == EVENTS


def test_an_event_is_out_as_soon_as_its_blank_line_is_in() -> None:
    """No event waits for the next one."""
    reader = EventReader()
    assert reader.feed(b"data: 1\n") == []
    assert reader.feed(b"\n") == [b"1"]
    assert reader.feed(b"data: 2\r\n\r\n") == [b"2"]
    assert reader.feed(b"data: 3\r\n\r") == [b"3"]
    assert reader.feed(b"\ndata: 4\n\n") == [b"4"]


def test_a_last_event_without_its_blank_line_is_none() -> None:
    """A stream cut in an event gives no half event."""
    reader = EventReader()
    assert reader.feed(b"data: whole\n\ndata: ha") == [b"whole"]
    assert reader.feed(b"lf\n") == []
