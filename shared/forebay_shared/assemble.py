"""The whole answer of a stream, put together from its chunks.

Chat chunks become a `chat.completion`, completion chunks a `text_completion`: text is joined, the
last of everything else counts. Fields that Forebay does not know are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_WHOLE = {"chat.completion.chunk": "chat.completion"}
_JOINED = frozenset(
    {"content", "reasoning_content", "reasoning", "refusal", "text", "arguments", "token_ids"}
)
"""Fields whose pieces are parts of one text, or of its tokens."""


def assemble(events: Iterable[bytes]) -> dict[str, Any] | None:
    """The answer as one object, or None where no event is a chunk."""
    whole: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        chunk = _chunk(event)
        for choice in filter(_is_object, chunk.pop("choices", None) or ()):
            _add_choice(choices.setdefault(int(choice.get("index", 0)), {}), choice)
        whole |= {name: value for name, value in chunk.items() if value is not None}
    if not whole:
        return None
    kind = whole.get("object", "")
    whole["object"] = _WHOLE.get(kind, kind)
    whole["choices"] = [choices[index] for index in sorted(choices)]
    return whole


def _chunk(event: bytes) -> dict[str, Any]:
    """The event's object; empty for an error, and for what is no chunk."""
    try:
        chunk = json.loads(event)
    except (ValueError, RecursionError):
        return {}
    return chunk if isinstance(chunk, dict) and "error" not in chunk else {}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _add_choice(known: dict[str, Any], choice: dict[str, Any]) -> None:
    message = choice.pop("delta", None)
    if message is not None:
        _merge(known.setdefault("message", {}), message)
    logprobs = choice.pop("logprobs", None)
    if isinstance(logprobs, dict):
        _extend(known.setdefault("logprobs", {}), logprobs)
    _merge(known, choice)


def _merge(known: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        if name == "tool_calls" and isinstance(value, list):
            _merge_calls(known.setdefault(name, []), value)
        elif name in _JOINED and isinstance(value, (str, list)) and known.get(name):
            known[name] += value
        elif isinstance(value, dict) and isinstance(known.get(name), dict):
            _merge(known[name], value)
        elif value is not None or name not in known:
            known[name] = value


def _merge_calls(known: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    """Pieces of tool calls name their call by index, which the whole answer does not have."""
    for piece in pieces:
        index = int(piece.pop("index", len(known)))
        while len(known) <= index:
            known.append({})
        _merge(known[index], piece)


def _extend(known: dict[str, Any], piece: dict[str, Any]) -> None:
    for name, value in piece.items():
        if isinstance(value, list):
            known.setdefault(name, []).extend(value)
        else:
            known.setdefault(name, value)
