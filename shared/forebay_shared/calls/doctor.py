"""What `forebay doctor` asks of a pool, and which commands this user may not call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay_shared.calls.library import Library

REFUSED = ("ACL failure", "user executing the script can't", "Unknown Redis command")
"""How servers word it that an inner command may not be called, or that there is none."""
KEYS = ("access a key", "access at least one of the keys", "access one of the keys")
"""How they word it that the command may be called, but not on this key."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of a pool, of one moment. Times are ms since 1970 by the server's clock.

    `accepted`, `ended` and `undecodable` are the ledger's; `queued` and `running` the clock's
    counters, `queued_of_classes` and `running_of_classes` their sums over classes; the rest is
    counted: places of waiting requests, `leases`, `deadlines`, and `entries` in all streams, None
    where there are too many streams. `swept_ms` is the last sweep's time, 0 where there was none.
    """

    now_ms: int
    swept_ms: int
    accepted: int
    ended: int
    undecodable: int
    queued: int
    running: int
    queued_of_classes: int
    running_of_classes: int
    waiting: int
    suspects: int
    delayed: int
    leases: int
    deadlines: int
    entries: int | None

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Counts:
        """From the function's reply."""
        known: dict[str, Any] = {name: value.get(name) for name in cls.__slots__}
        return cls(**known)


class Doctor:
    """Calls that only look."""

    def __init__(self, library: Library) -> None:
        self._library = library

    async def counts(self) -> Counts:
        """What the pool's identities are judged by."""
        return Counts.read(json.loads(await self._library.call("counts")))

    async def leaked(self, keys: Sequence[bytes]) -> dict[bytes, str]:
        """Of up to 100 whole key names of this pool those that nobody needs, and why."""
        flat = await self._library.call("leaked", len(keys), *keys)
        return {key: why.decode() for key, why in zip(flat[::2], flat[1::2], strict=True)}

    async def lacking(self) -> list[str]:
        """The ACL rules that this user lacks to call the library: `+command`, `~pattern`."""
        flat = [word.decode() for word in await self._library.call("rights")]
        errors = dict(zip(flat[::2], flat[1::2], strict=True))
        refused = {name: text for name, text in errors.items() if _holds(text, REFUSED)}
        rules = [f"+{name.lower()}" for name, text in refused.items() if not _holds(text, KEYS)]
        return rules if len(rules) == len(refused) else [*rules, f"~{self._library.keys.every}"]


def _holds(text: str, words: Sequence[str]) -> bool:
    return any(word in text for word in words)
