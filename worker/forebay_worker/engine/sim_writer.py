"""From tokens to text deltas, under the limits a request sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from forebay_worker.engine.sim_text import END_OF_TEXT, Source


@dataclass(frozen=True, slots=True)
class Limits:
    """What may end a text."""

    max_tokens: int
    min_tokens: int = 0
    """No end of text and no stop before so many tokens."""
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Whether the stop text that was hit stays in the answer."""


class Delta(NamedTuple):
    """One step of one choice."""

    choice: int
    text: str
    """Empty while a character is not whole or may be the begin of a stop text."""
    token_ids: tuple[int, ...]
    finish: str | None
    stop_reason: str | None


class Writer:
    """Says one source token by token; `done` once a delta carried a finish reason."""

    __slots__ = ("_held", "_hold", "_limits", "_source", "choice", "count", "done")

    def __init__(self, source: Source, limits: Limits, choice: int = 0) -> None:
        self.choice = choice
        self.count = 0
        self.done = False
        self._source = source
        self._limits = limits
        self._held = ""
        self._hold = max((len(s) for s in limits.stop), default=1) - 1

    def next(self) -> Delta:
        """The next token's delta."""
        position = self._source.start + self.count
        self.count += 1
        limits = self._limits
        past_min = self.count > limits.min_tokens
        if past_min and not limits.ignore_eos and position >= self._source.length - 1:
            return self._finish(END_OF_TEXT.id, self._held, "stop")
        token = self._source.token(position)
        if limits.stop:
            return self._next_with_stop(token.id, token.text, past_min)
        if self.count >= limits.max_tokens:
            return self._finish(token.id, token.text, "length")
        return Delta(self.choice, token.text, (token.id,), None, None)

    def abort(self) -> Delta:
        """End as an engine does that is being stopped: looks like a finish, but is none."""
        self.done = True
        return Delta(self.choice, self._held, (), "abort", None)

    def _next_with_stop(self, token_id: int, text: str, past_min: bool) -> Delta:
        """Hold back as many characters as could begin a stop text."""
        held = self._held + text
        hits = [(held.find(s), s) for s in self._limits.stop if s in held] if past_min else []
        if hits:
            at, stop = min(hits)
            end = at + len(stop) if self._limits.include_stop else at
            return self._finish(token_id, held[:end], "stop", stop)
        if self.count >= self._limits.max_tokens:
            return self._finish(token_id, held, "length")
        cut = max(0, len(held) - self._hold)
        self._held = held[cut:]
        return Delta(self.choice, held[:cut], (token_id,), None, None)

    def _finish(
        self, token_id: int, text: str, reason: str, stop_reason: str | None = None
    ) -> Delta:
        self.done = True
        return Delta(self.choice, text, (token_id,), reason, stop_reason)
