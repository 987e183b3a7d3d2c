"""Splicing: usage is asked for in the client's own bytes, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_shared.records import Envelope
from forebay_worker.prepare import prepare
from forebay_worker.splice import with_usage

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a":1}', b'{"stream_options":{"include_usage":true},"a":1}'),
        (b'  { "a" : 1 }\n', b'  {"stream_options":{"include_usage":true}, "a" : 1 }\n'),
        (b"{}", b'{"stream_options":{"include_usage":true}}'),
        (
            b'{"a":1, "stream_options" : null}',
            b'{"a":1, "stream_options" : {"include_usage":true}}',
        ),
        (
            b'{"stream_options":{"x":[1]},"b":2}',
            b'{"stream_options":{"include_usage":true,"x":[1]},"b":2}',
        ),
        (b'{"stream_options":{ }}', b'{"stream_options":{ "include_usage":true}}'),
        (
            b'{"stream_options":{"include_usage": false }}',
            b'{"stream_options":{"include_usage": true }}',
        ),
        (
            b'{"t":"say \\"stream_options\\": {}","u":"stream_options"}',
            b'{"stream_options":{"include_usage":true},'
            b'"t":"say \\"stream_options\\": {}","u":"stream_options"}',
        ),
        (
            b'{"m":{"stream_options":{"include_usage":true}}}',
            b'{"stream_options":{"include_usage":true},'
            b'"m":{"stream_options":{"include_usage":true}}}',
        ),
        (
            b'{"stream\\u005foptions":{"include_usage":false}}',
            b'{"stream\\u005foptions":{"include_usage":true}}',
        ),
        (
            '{"é":"日本🙂\\u003c"}'.encode(),
            '{"stream_options":{"include_usage":true},"é":"日本🙂\\u003c"}'.encode(),
        ),
    ],
)
def test_usage_is_spliced_in(body: bytes, expected: bytes) -> None:
    """The wish for usage stands in the body; every other byte is as it was."""
    assert with_usage(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream_options":{"include_usage":true}}',
        b'{"stream_options":{"include_usage":false},"stream_options":{"include_usage":true}}',
        b'{"stream_options":7}',
        b"",
        b"[]",
        b'[{"a":1}]',
        b"{",
        b'{"stream_options":{"include_usage":fal',
        b'{"stream_options":"\xff"}',
        b'{"stream_options":' + b"[" * 100_000,
    ],
)
def test_other_bodies_stay(body: bytes) -> None:
    """Asked for already, or not to be read: the engine gets what the client sent."""
    assert with_usage(body) is None


TEXTS = st.text() | st.sampled_from(["stream_options", "include_usage", '"stream_options":{}'])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(TEXTS, VALUES, max_size=4),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
def test_the_spliced_body_means_the_same_and_asks_for_usage(
    body: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    """For any object: parsed again it is the client's, plus the wish for usage."""
    raw = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    spliced = with_usage(raw)
    options = body.get("stream_options")
    if spliced is None:
        asked = isinstance(options, dict) and options.get("include_usage") is True
        odd = options is not None and not isinstance(options, dict)
        assert asked or odd or b"\xed" in raw
        return
    expected = body | {"stream_options": (options or {}) | {"include_usage": True}}
    assert json.loads(spliced) == expected


@pytest.mark.parametrize(
    ("path", "stream", "spliced"),
    [
        (CHAT, True, True),
        ("/v1/completions", True, True),
        (CHAT, False, False),
        ("/v1/embeddings", True, False),
    ],
)
def test_only_text_streams_are_asked(path: str, stream: bool, spliced: bool) -> None:
    """What does not stream states its usage anyway."""
    envelope = Envelope(path, "m", b'{"a":1}', stream=stream)
    prepared = prepare(envelope, "p.1")
    assert prepared.usage_added is spliced
    assert (prepared.call.body != envelope.body) is spliced
    assert prepared.call.request_id == "p.1"
