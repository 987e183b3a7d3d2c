"""Marks: the token ids beside each chunk, and what the client gets of them."""

from __future__ import annotations

from forebay_worker.marks import SPOILED, Marks, TokenIds, read_ids


def test_marks_end_where_the_delivered_text_ends() -> None:
    """Ids of a character that is not whole wait for the chunk that completes it."""
    marks = Marks(TokenIds.ADDED)
    role = b'{"choices":[{"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1, 2]}'
    half = b'{"choices":[{"delta":{"content":""},"token_ids":[7]}]}'
    whole = b'{"choices":[{"delta":{"content":"x"},"token_ids":[8,9]}]}'
    end = b'{"choices":[{"delta":{"content":""},"finish_reason":"stop","token_ids":[3]}]}'
    taken = [marks.take(data) for data in (role, half, whole, half, end)]
    assert [mark for _, mark in taken] == [b"", b"", b"1,2;7,8,9?", b"", b"7,3"]
    assert taken[0][0].endswith(b'"prompt_token_ids":null}')
    assert taken[2][0] == b'{"choices":[{"delta":{"content":"x"},"token_ids":null}]}'
    assert read_ids(b"7,8,9?") == [7, 8, 9]
    assert (read_ids(b"7,3"), read_ids(b"")) == ([7, 3], [])


def test_what_looks_like_ids_inside_a_text_stays() -> None:
    marks = Marks(TokenIds.ADDED)
    said = b'{"choices":[{"delta":{"content":"\\"token_ids\\":[1]"},"token_ids":[5]}]}'
    data, mark = marks.take(said)
    assert (data, mark) == (said.replace(b'"token_ids":[5]', b'"token_ids":null'), b"5")


def test_thoughts_and_tool_calls_spoil_a_stream() -> None:
    marks = Marks(TokenIds.ADDED)
    assert marks.take(b'{"choices":[{"delta":{"reasoning":"hm"},"token_ids":[5]}]}')[1] == SPOILED
    assert marks.spoiled
