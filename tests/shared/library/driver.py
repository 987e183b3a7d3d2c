"""A copy of the function library whose clock the tests hold, and synchronous calls to it.

The copy differs from the product's text in the one function that reads the server's time, and in
its name. Everything else is the product's.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from redis import Redis
from redis.exceptions import ResponseError
from tests.model.mutants import mutated

from forebay_shared.calls import Duties, Intake, Leases, Letters, Library, Operator
from forebay_shared.calls.library import Call
from forebay_shared.keys import Keys
from forebay_shared.library import LIBRARY_NAME, source
from forebay_shared.settings import PoolSettings

CLOCK = "test-clock"
NOW_MS = re.compile(r"function P\.now_ms\(\)\n.*?\nend\n", re.DOTALL)
HELD_CLOCK = f"function P.now_ms() return tonumber(redis.call('GET', '{CLOCK}')) end\n"

T = TypeVar("T")


def held_source() -> tuple[str, str]:
    """The text of the copy, and the hash that its functions' names end in."""
    text, count = NOW_MS.subn(HELD_CLOCK, source())
    assert count == 1, "the library reads its clock in one place"
    text = mutated(text, os.environ.get("FOREBAY_MUTANT", ""))
    mark = LIBRARY_NAME.removeprefix("forebay_")
    new = hashlib.sha256(text.encode()).hexdigest()[:12]
    return text.replace(mark, new), new


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The value of a coroutine that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    raise AssertionError("the coroutine waits for something")


class HeldLibrary(Library):
    """Calls the copy for one pool; `now_ms` is the time that its next call sees."""

    def __init__(self, client: Redis, pool: str, settings: PoolSettings) -> None:
        self.client = client
        self.pool = pool
        self.keys = Keys(pool)
        text, self.mark = held_source()
        self.now_ms = 1_700_000_000_000
        self.text = settings.stored()
        try:
            client.function_load(text)
        except ResponseError as error:
            if "already exists" not in str(error):
                raise

    @property
    def prefix(self) -> str:
        return self.keys.layout.removesuffix("layout")

    @property
    def now_ms(self) -> int:
        return self._now_ms

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        self._now_ms = value
        self.client.set(CLOCK, value)

    def fcall(self, step: str, *arguments: Any) -> Any:
        """The raw reply of a function; errors go to the caller."""
        name = f"forebay_{step}_{self.mark}"
        return self.client.fcall(name, 2, self.keys.layout, self.keys.never, *arguments)

    async def together(self, calls: Sequence[Call]) -> list[Any]:
        return [self.fcall(step, *arguments) for step, arguments in calls]


def admit(library: HeldLibrary, number: int, tenant: str = "ann", timeout: int = 600_000) -> Any:
    """One request, without an oracle."""
    name = f"{library.pool}.{number:026d}"
    head = [name, "normal", tenant, 1, timeout, 1, "m", -1, -1, 0, 0, 0, "", ""]
    return library.fcall("admit", "", 1, *head, 0, 0, 0, 0, "{}", "body")


def take(library: HeldLibrary, worker: str, call: int, count: int = 100) -> list[str]:
    """The ids that a worker with room is granted, without an oracle."""
    rows, _ = library.fcall("take", worker, call, 100, 1, count, 1, "normal", 100)
    return [row[0].decode() for row in rows]


def finish(library: HeldLibrary, worker: str, call: int, request_id: str) -> str:
    row = [request_id, call, "done", "", 3, 0, 7, "{}", "answer", 0, 0]
    return str(library.fcall("finish", worker, 1, *row)[0].decode())


class Calls:
    """The product's callers over the copy, each call answered at once."""

    def __init__(self, library: HeldLibrary) -> None:
        self.library = library
        self.intake = Intake(library)
        self.leases = Leases(library)
        self.duties = Duties(library)
        self.letters = Letters(library)
        self.operator = Operator(library)
