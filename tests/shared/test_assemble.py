"""Whole answers from chunks, as the engine would have given them at once."""

from __future__ import annotations

import json
from typing import Any

from forebay_shared.assemble import assemble


def chat(delta: dict[str, Any], index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": None, **more}
    head = {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return json.dumps({**head, "choices": [choice]}).encode()


def test_chat_text_is_joined_and_usage_kept() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    last = {"id": "c-1", "object": "chat.completion.chunk", "choices": [], "usage": usage}
    whole = assemble(
        [
            chat({"role": "assistant", "content": ""}),
            chat({"content": "Hé"}),
            chat({"content": "llo"}),
            chat({}, finish_reason="stop"),
            json.dumps(last).encode(),
        ]
    )
    assert whole == {
        "id": "c-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Héllo"},
                "finish_reason": "stop",
            }
        ],
        "usage": usage,
    }


def test_several_choices_stay_apart() -> None:
    whole = assemble(
        [chat({"content": "b"}, 1), chat({"content": "a"}, 0), chat({"content": "B"}, 1)]
    )
    assert whole is not None
    assert [one["message"]["content"] for one in whole["choices"]] == ["a", "bB"]


def test_tool_calls_are_joined_by_index() -> None:
    def call(index: int, **function: str) -> dict[str, Any]:
        return {"index": index, "function": function}

    first = {"id": "t-1", "type": "function", **call(0, name="f", arguments="")}
    second = {"id": "t-2", "type": "function", **call(1, name="g", arguments="{}")}
    whole = assemble(
        [
            chat({"role": "assistant", "content": None, "tool_calls": [first]}),
            chat({"tool_calls": [call(0, arguments='{"a":')]}),
            chat({"tool_calls": [call(0, arguments="1}"), second]}),
        ]
    )
    assert whole is not None
    assert whole["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "t-1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "t-2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_reasoning_logprobs_and_token_ids_are_joined() -> None:
    def part(text: str, token: int) -> bytes:
        logprobs = {"content": [{"token": text}]}
        return chat({"reasoning_content": text}, logprobs=logprobs, token_ids=[token])

    whole = assemble([part("a", 1), part("b", 2)])
    assert whole is not None
    (choice,) = whole["choices"]
    assert choice["message"] == {"reasoning_content": "ab"}
    assert choice["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}
    assert choice["token_ids"] == [1, 2]


def test_completion_text_is_joined() -> None:
    def part(text: str, reason: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
        return json.dumps({"id": "x", "object": "text_completion", "choices": [choice]}).encode()

    assert assemble([part("a"), part("b", "length")]) == {
        "id": "x",
        "object": "text_completion",
        "choices": [{"index": 0, "text": "ab", "finish_reason": "length"}],
    }


def test_no_chunks_make_no_answer() -> None:
    assert assemble([]) is None
