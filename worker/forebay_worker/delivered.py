"""What earlier attempts have delivered of a request, read back from Redis."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay_shared.calls.output import Emitted
from forebay_worker.marks import MAY_END_WITHIN, SPOILED, read_ids

Page = Callable[[int, int], Awaitable[Sequence[Emitted]]]


@dataclass(slots=True)
class Delivered:
    """Chunks that a client may have seen.

    `prompt` and `ids`: token ids of the prompt and of the text, where every text has its mark
    (`marked`). `ends_whole`: they end where the text ends, for sure. `ends_marked`: the very last
    chunk has a mark. `template`: a chunk whose fields all chunks share. `pieces`: chunks with text.
    `finish_reason`: empty where the text has not ended. `usage_told`: the usage was delivered too.
    """

    events: list[bytes] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    text: str = ""
    pieces: int = 0
    template: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    usage_told: bool = False
    marked: bool = True
    ends_marked: bool = True
    ends_whole: bool = True
    spoiled: bool = False

    def add(self, event: bytes, mark: bytes) -> None:
        """Note the next chunk. One that cannot be read spoils all."""
        self.events.append(event)
        try:
            chunk = json.loads(event)
            text = self._read(chunk)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self.spoiled = True
            return
        self.spoiled = self.spoiled or mark == SPOILED
        self.ends_marked = bool(mark)
        if text:
            self.pieces += 1
            self.text += text
            self.marked = self.marked and bool(mark)
        if mark and not self.spoiled:
            self.ids += read_ids(mark)
            self.ends_whole = not mark.endswith(MAY_END_WITHIN)

    def _read(self, chunk: dict[str, Any]) -> str:
        told = bool(chunk.get("usage"))
        if not chunk.get("choices"):
            self.usage_told = self.usage_told or told
            return ""
        (choice,) = chunk["choices"]
        self.template = chunk
        if finish := choice.get("finish_reason"):
            self.finish_reason, self.usage_told = finish, told
        text = choice["delta"].get("content") if "delta" in choice else choice["text"]
        return text or ""


async def read_delivered(page: Page, offset: int) -> Delivered | None:
    """The first `offset` chunks; None where Redis has lost some. Raises what `page` does."""
    delivered = Delivered()
    while len(delivered.events) < offset:
        rows = await page(len(delivered.events), offset)
        if not rows:
            return None
        for event, mark in rows:
            delivered.add(event, mark)
    return delivered
