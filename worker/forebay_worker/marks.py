"""Marks: beside each chunk the token ids it stands for, so that a later attempt goes on after it.

The engine is asked for token ids where the client did not ask for them; they are taken out of what
the client gets. A mark is `<ids>`, or `<prompt ids>;<ids>` with the first text, ids as decimal
numbers with commas between; emit keeps the prompt's apart. The ids of a character that is not whole
yet have no text; they wait for the chunk that completes it, so that all marks together end where
the delivered text ends.

An engine that is ahead of its reader puts several tokens into one chunk, and the last of them may
be the begin of a character whose text is yet to come. Such a mark ends with `?`.
"""

from __future__ import annotations

import re
from enum import Enum

_IDS = re.compile(rb'"token_ids"\s*:\s*\[([0-9,\s]*)\]')
_PROMPT_IDS = re.compile(rb'"prompt_token_ids"\s*:\s*\[([0-9,\s]*)\]')
_NO_TEXT = re.compile(rb'"(?:content|text)"\s*:\s*(?:""|null)|"delta"\s*:\s*\{\}')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_BESIDE_TEXT = re.compile(
    rb'"(?:reasoning|reasoning_content|refusal)"\s*:\s*"|"tool_calls"\s*:\s*\[\{'
)

MAY_END_WITHIN = b"?"
SPOILED = b"!"
"""The mark of a chunk that holds more than plain text: the stream cannot be continued."""


class TokenIds(Enum):
    """Whether the engine states token ids, and for whom."""

    NONE = "it does not"
    ADDED = "for Forebay: they are taken out"
    ASKED = "the client asked for them: they stay"


class Marks:
    """Makes the marks of one attempt's chunks; `spoiled` once the stream cannot be continued."""

    __slots__ = ("_ids", "_kind", "_prompt", "spoiled")

    def __init__(self, kind: TokenIds) -> None:
        self._kind = kind
        self._prompt = b""
        self._ids: list[bytes] = []
        self.spoiled = False

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """What passes of an engine's chunk, and its mark."""
        if self._kind is not TokenIds.NONE:
            data = self._collect(data)
        if _BESIDE_TEXT.search(data):
            self.spoiled = True
        return data, self._mark(data)

    def _collect(self, data: bytes) -> bytes:
        prompt = _PROMPT_IDS.search(data)
        if prompt is not None:
            self._prompt = _compact(prompt[1])
        ids = _IDS.search(data)
        if ids is not None and ids[1]:
            self._ids.append(_compact(ids[1]))
        if self._kind is TokenIds.ASKED:
            return data
        # As the engine would have said it unasked.
        if prompt is not None:
            data = _PROMPT_IDS.sub(b'"prompt_token_ids":null', data, 1)
        return data if ids is None else _IDS.sub(b'"token_ids":null', data, 1)

    def _mark(self, data: bytes) -> bytes:
        if self.spoiled:
            return SPOILED
        if not self._ids or (_NO_TEXT.search(data) and not _FINISH.search(data)):
            return b""
        mark = b",".join(self._ids)
        if b"," in self._ids[-1]:
            mark += MAY_END_WITHIN
        if self._prompt:
            mark = self._prompt + b";" + mark
        self._prompt = b""
        self._ids.clear()
        return mark


def read_ids(mark: bytes) -> list[int]:
    """The ids that a mark, or what was kept of the prompt, stands for."""
    text = mark.removesuffix(MAY_END_WITHIN)
    return [int(one) for one in text.split(b",")] if text else []


def _compact(ids: bytes) -> bytes:
    return b"".join(ids.split())
