"""Reading what an engine answers: usage, finish reason, first token. Bytes pass through unread
as far as can be: a quote inside a JSON string is escaped, so a search for `"usage"` finds keys.
"""

from __future__ import annotations

import json
import re
from typing import Any

from forebay_shared.records import Usage
from forebay_worker.members import member, without

_FINISH = re.compile(rb'"finish_reason"\s*:\s*"([^"\\]{1,64})"')
_NO_FINISH = re.compile(rb'"finish_reason"\s*:\s*null')
_USAGE_OBJECT = re.compile(rb'"usage"\s*:\s*\{')
MOST_TOKENS = 10**9
"""An engine that states more is wrong, and must not upset the accounts."""
BYTES_PER_TOKEN = 4
NOTHING = Usage()
_NULL_USAGE_TAIL = b',"usage":null}'
_DECODER = json.JSONDecoder(strict=False)


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(
        prompt=_count(value.get("prompt_tokens")),
        cached=_count(cached),
        output=_count(value.get("completion_tokens")),
    )


def _count(value: Any) -> int:
    return min(value, MOST_TOKENS) if isinstance(value, int) and value > 0 else 0


def usage_in(body: bytes) -> Usage | None:
    """The usage that an answer states, read without parsing the rest; the last one counts."""
    found = [match.end() for match in _USAGE_OBJECT.finditer(body)]
    if not found:
        return None
    try:
        value, _ = _DECODER.raw_decode(body[found[-1] - 1 :].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return _usage(value)


def finish_reason_in(body: bytes) -> str:
    """The answer's finish reason; `abort` if any choice has it, empty where there is none."""
    reasons = _FINISH.findall(body)
    if not reasons:
        return ""
    return (b"abort" if b"abort" in reasons else reasons[-1]).decode("utf-8", "replace")


def guess(asked: bytes, answered: bytes = b"") -> Usage:
    """Usage of an engine that states none: by bytes."""
    return Usage(len(asked) // BYTES_PER_TOKEN, 0, len(answered) // BYTES_PER_TOKEN)


class StreamReader:
    """Reads one stream's chunks as they pass.

    `usage_added`: take usage out of what passes. `prompt`: what the prompt counts until the engine
    states its usage, from the first token on, when the engine has read it. `before`: what earlier
    attempts of a stream that goes on have used.
    """

    __slots__ = (
        "_before", "_prompt", "_usage_added", "finish_reason", "has_output", "tokens", "usage",
    )  # fmt: skip

    def __init__(self, usage_added: bool, prompt: Usage = NOTHING, before: Usage = NOTHING) -> None:
        self._usage_added = usage_added
        self._prompt = prompt
        self._before = before
        self.usage: Usage | None = None
        self.finish_reason = ""
        self.has_output = False
        self.tokens = 0

    def read(self, data: bytes) -> bytes | None:
        """What of this chunk the client gets: the same bytes wherever nothing was added."""
        if not self.has_output:
            self.has_output = _has_output(data)
        self.tokens += self.has_output
        if b'"finish_reason"' in data and _FINISH.search(data):
            self._note_finish(finish_reason_in(data))
        return self._read_usage(data) if b'"usage"' in data else data

    def so_far(self) -> Usage:
        """Tokens used up to now: as stated, else one for each chunk that had output."""
        if self.usage is not None:
            return self.usage
        prompt = self._prompt.prompt if self.has_output or self._before.output else 0
        return Usage(self._before.prompt or prompt, 0, self._before.output + self.tokens)

    def _note_finish(self, reason: str) -> None:
        if self.finish_reason != "abort":
            self.finish_reason = reason

    def _read_usage(self, data: bytes) -> bytes | None:
        self.usage = usage_in(data) or self.usage
        if not self._usage_added:
            return data
        if data.endswith(_NULL_USAGE_TAIL):
            return data[: -len(_NULL_USAGE_TAIL)] + b"}"
        try:
            return _without_usage(data.decode())
        except (ValueError, RecursionError):
            return data


def _without_usage(text: str) -> bytes | None:
    """The chunk without its usage; None where it had nothing else to say."""
    choices, usage = member(text, "choices"), member(text, "usage")
    if usage is None:
        return text.encode()
    if usage.value is not None and (choices is None or choices.value == []):
        return None
    return without(text, usage).encode()


def _has_output(data: bytes) -> bool:
    """Whether a chunk holds text, a tool call, or anything beside a role and empty strings."""
    try:
        choices = json.loads(data)["choices"]
        return any(_speaks(choice) for choice in choices)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return True  # not a chunk as we know them: it shall not be kept waiting


def _speaks(choice: Any) -> bool:
    delta = choice.get("delta") or {}
    spoken = any(value for key, value in delta.items() if key != "role")
    return bool(spoken or choice.get("text") or choice.get("finish_reason"))
