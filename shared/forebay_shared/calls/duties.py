"""What every process does beside its work: sweep; and a worker's place in the registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay_shared.calls.library import Library


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did. `again`: something was full, repeat at once with `forced`."""

    expired: int
    retried: int
    reclaimed: int
    repaired: int
    again: bool


@dataclass(frozen=True, slots=True)
class Registration:
    """A worker as the registry shows it. `state`: `serving` or `draining`."""

    worker: str
    state: str
    slots: int
    classes: Sequence[str]
    models: Sequence[str]
    held: int
    about: Mapping[str, Any]
    """Engine, host, version: shown to operators, never read by the library."""


class Duties:
    """Calls that any process makes again and again."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def sweep(self, forced: bool = False) -> Swept | None:
        """Expire, retry, reclaim, audit and ring what is due; None where another did it just now.

        Offered by every process each tick; the throttle has a TTL and no holder that can die.
        `forced` is for repeating at once after `again`.
        """
        row = await self._library.call("sweep", int(forced))
        if not row:
            return None
        expired, retried, reclaimed, repaired, again = (int(value) for value in row)
        return Swept(expired, retried, reclaimed, repaired, bool(again))

    async def register(self, one: Registration) -> int:
        """Note that a worker lives, and what it serves; the settings' epoch."""
        reply = await self._library.call(
            "register", one.worker, one.state, one.slots, one.held,
            json.dumps(list(one.classes)), json.dumps(dict(one.about)),
            len(one.models), *one.models,
        )  # fmt: skip
        return int(reply)

    async def leave(self, worker: str) -> None:
        """Take a worker out of the registry. What it still holds is reclaimed when it expires."""
        await self._library.call("leave", worker)
