"""Reading answers: usage, finish reason and first token, with the bytes left as they came."""

from __future__ import annotations

import json

import pytest
from tests.worker.scripted import USAGE_CHUNK, answer, chunk

from forebay_shared.records import Usage
from forebay_worker.answers import MOST_TOKENS, StreamReader, finish_reason_in, guess, usage_in


def test_usage_of_an_answer() -> None:
    """Prompt, cached and output tokens, wherever in the answer they stand."""
    assert usage_in(answer()) == Usage(7, 0, 3)
    cached = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    body = json.dumps({"usage": cached, "data": [{"embedding": [0.5]}]}, indent=1).encode()
    assert usage_in(body) == Usage(9, 4, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b'{"usage":null}',
        b'{"usage":{',
        b'{"text":"\\"usage\\":{\\"prompt_tokens\\":5}"}',
    ],
)
def test_no_usage(body: bytes) -> None:
    """None where there is none: also where a text only speaks of it."""
    assert usage_in(body) is None


@pytest.mark.parametrize("odd", [{"prompt_tokens": "7"}, {"prompt_tokens": -1}, {}])
def test_odd_usage_counts_nothing(odd: dict[str, object]) -> None:
    """Numbers that are none, or negative, are taken for zero."""
    assert usage_in(json.dumps({"usage": odd}).encode()) == Usage()


def test_absurd_usage_is_bounded() -> None:
    """A number that the library would refuse must not keep the answer from being stored."""
    body = json.dumps({"usage": {"prompt_tokens": 10**30}}).encode()
    assert usage_in(body) == Usage(MOST_TOKENS, 0, 0)


def test_finish_reason_of_an_answer() -> None:
    """The last choice's; `abort` if any choice has it."""
    two = {"choices": [{"finish_reason": "abort"}, {"finish_reason": "stop"}]}
    assert finish_reason_in(answer()) == "stop"
    assert finish_reason_in(json.dumps(two).encode()) == "abort"
    assert finish_reason_in(b'{"text":"\\"finish_reason\\":\\"abort\\""}') == ""


def test_the_usage_chunk_is_taken_out_and_read() -> None:
    """What was added for us does not reach the client."""
    reader = StreamReader(usage_added=True)
    assert reader.read(chunk("a")) == chunk("a")
    assert reader.read(USAGE_CHUNK) is None
    assert reader.usage == Usage(7, 0, 3)


@pytest.mark.parametrize(
    ("data", "left"),
    [
        (b'{"choices":[{"delta":{}}],"usage":null}', b'{"choices":[{"delta":{}}]}'),
        (b'{"usage": null, "choices": [1]}', b'{"choices": [1]}'),
        (b'{"a":1 , "usage" : null , "b":2}', b'{"a":1 , "b":2}'),
        (b'{"choices":[1], "usage": null }', b'{"choices":[1] }'),
        (b'{"choices":[1],"usage":{"prompt_tokens":1}}', b'{"choices":[1]}'),
        (b'{"choices":[{"usage":null}]}', b'{"choices":[{"usage":null}]}'),
        (b'{"t":"\\"usage\\":null","usage":null}', b'{"t":"\\"usage\\":null"}'),
        ('{"t":"日本\\u00e9","usage":null ,"z":0}'.encode(), '{"t":"日本\\u00e9","z":0}'.encode()),
        (b'{"usage":null', b'{"usage":null'),
    ],
)
def test_usage_beside_other_things_is_cut_out_of_the_bytes(data: bytes, left: bytes) -> None:
    """The member goes with its comma; nothing else of the chunk is touched."""
    reader = StreamReader(usage_added=True)
    assert reader.read(data) == left


@pytest.mark.parametrize("data", [USAGE_CHUNK, b'{"choices":[],"usage":null}', b"{", b"\xff"])
def test_where_nothing_was_added_chunks_pass_as_received(data: bytes) -> None:
    assert StreamReader(usage_added=False).read(data) is data


@pytest.mark.parametrize(
    "data",
    [
        chunk(role="assistant"),
        chunk(""),
        b'{"choices":[]}',
        b'{"choices":[{"text":"","finish_reason":null}]}',
        b'{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}',
    ],
)
def test_a_chunk_without_output_is_not_the_first_token(data: bytes) -> None:
    """Roles and empty texts come before anything was generated."""
    reader = StreamReader(usage_added=False)
    reader.read(data)
    assert not reader.has_output
    assert reader.so_far() == Usage()


@pytest.mark.parametrize(
    "data",
    [
        chunk("a"),
        chunk("a", role="assistant"),
        chunk("", finish="stop"),
        b'{"choices":[{"text":"a"}]}',
        b'{"choices":[{"delta":{"reasoning_content":"hm"}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}',
        b'{"an engine":"of another kind"}',
        b"not json",
    ],
)
def test_a_chunk_with_output_is_the_first_token(data: bytes) -> None:
    """Text, thought, tool calls, an end; and what we cannot read shall not wait."""
    reader = StreamReader(usage_added=False)
    reader.read(data)
    assert reader.has_output
    assert reader.so_far().output == 1


def test_a_prompt_counts_from_the_first_token_on() -> None:
    """Until usage is stated it is guessed: a client that leaves early has used its prefill."""
    asked = b"x" * 400
    reader = StreamReader(True, guess(asked))
    reader.read(chunk(role="assistant"))
    assert reader.so_far() == Usage()
    reader.read(chunk("a"))
    assert reader.so_far() == Usage(100, 0, 1)
    reader.read(USAGE_CHUNK)
    assert reader.so_far() == Usage(7, 0, 3)
    assert guess(asked, b"y" * 40) == Usage(100, 0, 10)


def test_finish_reason_of_a_stream() -> None:
    """The last chunk's that has one; an abort of any choice stays."""
    reader = StreamReader(usage_added=False)
    for finish in (None, "abort", "stop"):
        reader.read(chunk("a", finish=finish))
    assert reader.finish_reason == "abort"
    assert reader.so_far() == Usage(output=3)
