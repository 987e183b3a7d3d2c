"""The end of a stream whose usage chunk is taken out.

Engines state some things about the whole answer once, in its last chunk (vLLM: the
`system_fingerprint`). Where Forebay asked for usage, the last chunk is one that the client does not
get; what it states beside usage then goes into the chunk before it, where the client would have
found it. So a chunk with a finish reason waits for the one that follows.

Chunks travel with their marks.
"""

from __future__ import annotations

from forebay_worker.answers import finish_reason_in
from forebay_worker.members import members
from forebay_worker.runs import Kept

_OWN = frozenset({"id", "object", "created", "model", "choices", "usage"})
"""What every chunk has, or what was asked for."""


class Tail:
    """Passes the chunks of one stream on, the last one late. `held_back`: usage is taken out."""

    __slots__ = ("_held", "_held_back")

    def __init__(self, held_back: bool) -> None:
        self._held_back = held_back
        self._held: Kept | None = None

    def push(self, raw: bytes, passed: bytes | None, mark: bytes = b"") -> list[Kept]:
        """What goes to the client now; `passed` is what is left of the engine's `raw` chunk."""
        if not self._held_back:
            return [] if passed is None else [(passed, mark)]
        if passed is None:
            return [(with_statements(chunk, raw), known) for chunk, known in self.rest()]
        due = self.rest()
        if finish_reason_in(passed):
            self._held = passed, mark
            return due
        return [*due, (passed, mark)]

    def rest(self) -> list[Kept]:
        """What was held back, when nothing follows."""
        due = [] if self._held is None else [self._held]
        self._held = None
        return due


def with_statements(chunk: bytes, last: bytes) -> bytes:
    """The chunk with what `last` states about the whole answer; as it is where that is nothing."""
    try:
        text, said = chunk.decode(), last.decode()
        known = {name for name, _ in members(text)}
        extra = [
            f',"{name}":{said[one.value_at : one.value_end]}'
            for name, one in members(said)
            if name not in known | _OWN
        ]
    except (ValueError, RecursionError):
        return chunk
    if not extra:
        return chunk
    return (text[: text.rindex("}")] + "".join(extra) + "}").encode()
