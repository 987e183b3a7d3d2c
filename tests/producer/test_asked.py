"""What is read of a body, and that nothing else of it matters."""

from __future__ import annotations

import json

import pytest

from forebay_producer.asked import output_limit, read_asked
from forebay_shared.calls.requests import UNKNOWN
from forebay_shared.errors import InvalidRequest

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def limit(path: str, **fields: object) -> int:
    return output_limit(path, read_asked(path, json.dumps({"model": "m", **fields}).encode()))


def test_unknown_fields_and_odd_values_of_them_pass() -> None:
    asked = read_asked(CHAT, b'{"model":"m","messages":"?","temperature":"hot","x":[{}],"n":null}')
    assert (asked.model, asked.streams, asked.answers()) == ("m", False, 1)


@pytest.mark.parametrize("value", ["true", 1, True])
def test_stream_is_read_as_leniently_as_engines_do(value: object) -> None:
    assert read_asked(CHAT, json.dumps({"model": "m", "stream": value}).encode()).streams


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"", None, "not JSON"),
        (b"{", None, "not JSON"),
        (b'{"model":"m"} x', None, "not JSON"),
        (b"\xff\xfe", None, "not JSON"),
        (b"[]", None, "must be a JSON object"),
        (b'"text"', None, "must be a JSON object"),
        (b"{}", "model", "Field required"),
        (b'{"model":""}', "model", "at least 1 character"),
        (b'{"model":7}', "model", "valid string"),
        (b'{"model":"m","stream":"perhaps"}', "stream", "valid boolean"),
        (b'{"model":"m","max_tokens":-1}', "max_tokens", "greater than or equal to 0"),
        (b'{"model":"m","max_tokens":1e99}', "max_tokens", "integer"),
        (b'{"model":"m","max_completion_tokens":"x"}', "max_completion_tokens", "valid integer"),
        (b'{"model":"m","n":0}', "n", "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_read_names_the_field(body: bytes, param: str | None, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        read_asked(CHAT, body)
    assert caught.value.param == param


def test_an_error_never_quotes_the_prompt() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_asked(CHAT, b'{"model":"m","messages":[{"content":"secret prompt"}],"n":"secret"')
    assert "secret" not in caught.value.message
    with pytest.raises(InvalidRequest) as caught:
        read_asked(CHAT, b'{"model":"m","n":"secret prompt"}')
    assert "secret" not in caught.value.message


def test_most_output_is_tokens_times_answers() -> None:
    assert limit(CHAT, max_tokens=10) == 10
    assert limit(CHAT, max_tokens=10, n=3) == 30
    assert limit(CHAT, max_tokens=10, max_completion_tokens=7) == 7
    assert limit(CHAT) == UNKNOWN
    assert limit(CHAT, max_tokens=None) == UNKNOWN
    assert limit(COMPLETION, prompt="a") == 16
    assert limit(COMPLETION, prompt="a", max_tokens=None) == UNKNOWN
    assert limit(COMPLETION, prompt=["a", "b"], max_tokens=5, n=2) == 20
    assert limit(COMPLETION, prompt=[1, 2, 3], max_tokens=5) == 5
    assert limit(COMPLETION, prompt=[[1, 2], [3]], max_tokens=5) == 10
    assert limit(COMPLETION, prompt="a", max_tokens=5, n=1, best_of=4) == 20
    assert limit("/v1/embeddings", input="a") == 0
