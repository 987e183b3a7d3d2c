"""The way of an engine's chunks to the client, in one attempt.

rewrite   a continuation's chunks become those of the stream that has begun
mark      token ids are taken out and kept beside
read      usage and finish reason are read, usage that was not asked for is taken out
tail      the last chunk takes over what was stated after it
"""

from __future__ import annotations

from typing import Any

from forebay_shared.assemble import assemble
from forebay_shared.records import Usage
from forebay_worker.answers import StreamReader
from forebay_worker.marks import Marks
from forebay_worker.prepare import Prepared
from forebay_worker.runs import Kept
from forebay_worker.tail import Tail

ABORTED = "abort"
"""Finish reason of an engine that was stopped: it looks like an end and is none."""


class Passage:
    """Passes one attempt's chunks on. `prompt`: a guess of what the prompt counts."""

    def __init__(self, prepared: Prepared, prompt: Usage) -> None:
        self._rewriter = prepared.rewriter
        self._usage_added = prepared.usage_added
        self._marks = Marks(prepared.ids) if prepared.continues else None
        self._reader = StreamReader(prepared.usage_added, prompt, prepared.before)
        self._tail = Tail(prepared.usage_added)
        self._events = list(prepared.events) if prepared.assembles else None

    def push(self, data: bytes) -> list[Kept]:
        """The chunks, with their marks, that are due to the client after this one of the engine."""
        raw: bytes | None = data
        if self._rewriter is not None:
            raw = self._rewriter.rewrite(data)
        if raw is None:
            return []
        mark = b""
        if self._marks is not None:
            raw, mark = self._marks.take(raw)
        passed = self._reader.read(raw)
        if self.aborted:
            return []  # no end, so no client shall take it for one
        return self._note(self._tail.push(raw, passed, mark))

    def rest(self) -> list[Kept]:
        """What was held back, when nothing follows."""
        return self._note(self._tail.rest())

    def _note(self, due: list[Kept]) -> list[Kept]:
        if self._events is not None:
            self._events += (event for event, _ in due)
        return due

    def whole(self) -> dict[str, Any]:
        """The answer of a call that assembles, when its last chunk has passed."""
        return assemble(self._events or ()) or {}

    @property
    def spoiled(self) -> bool:
        """Whether a client has got what cannot be gone on with after all."""
        return self._events is None and self._marks is not None and self._marks.spoiled

    @property
    def complete(self) -> bool:
        """Whether all was said though the engine broke off before its `[DONE]`."""
        said = self._marks is not None and self.finish_reason and not self.aborted
        return bool(said) and (self._usage_added or self._reader.usage is not None)

    @property
    def has_output(self) -> bool:
        """Whether anything passed that a client can use."""
        return self._reader.has_output

    @property
    def usage(self) -> Usage:
        """Tokens of the request so far, those of earlier attempts included."""
        return self._reader.so_far()

    @property
    def finish_reason(self) -> str:
        return self._reader.finish_reason

    @property
    def aborted(self) -> bool:
        """Whether the engine was stopped in the midst of the answer."""
        return self._reader.finish_reason == ABORTED
