"""A fleet in simulated time over the real library: engines that die with all that they run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.shared.library.driver import HeldLibrary
from tests.shared.library.rig import request_id

TICK_S = 0.5
LENGTH_S = (2.0, 40.0)
"""How long a request runs."""
FUSE_S = (2.0, 15.0)
"""How soon a killer kills the engine that runs it."""
RESTART_S = 180.0
"""An engine that died serves again after so long: it loads its model."""
LOAD = 0.8


@dataclass
class Engine:
    """One worker with its engine; `held` says when each request ends, or kills."""

    name: str
    call: int = 0
    back_s: float = 0.0
    held: dict[int, tuple[int, float]] = field(default_factory=dict)


class Fleet:
    """Workers of `slots` slots each, offered `LOAD` of what they can serve while all live.

    `killers` are the numbers of requests that kill. `killed_each_s`: beside that every worker dies
    by itself so often on average; 0: never.
    """

    def __init__(
        self,
        library: HeldLibrary,
        seed: int,
        workers: int,
        killers: frozenset[int] = frozenset(),
        killed_each_s: float = 0.0,
    ) -> None:
        self.library = library
        self.dice = random.Random(seed)
        self.killers = killers
        self.killed_each_s = killed_each_s
        self.slots = 32
        self.engines = [Engine(f"w{n}") for n in range(workers)]
        self.now_s = 0.0
        self.admitted = 0
        self.done: set[int] = set()
        self.convicted: dict[int, float] = {}
        self.kills = 0
        """Engine deaths by a killer."""

    def run(self, until_s: float, arrivals_until_s: float) -> None:
        while self.now_s < until_s and (
            self.now_s < arrivals_until_s or len(self.done) + len(self.convicted) < self.admitted
        ):
            self.now_s += TICK_S
            self.library.now_ms += int(TICK_S * 1000)
            for engine in self.engines:
                self._live(engine)
            if self.now_s <= arrivals_until_s:
                self._arrive()
            for engine in self.dice.sample(self.engines, len(self.engines)):
                if engine.back_s <= self.now_s and len(engine.held) < self.slots:
                    self._take(engine)

    def _live(self, engine: Engine) -> None:
        """Ends what is due, by death or well."""
        due = [n for n, (_, end_s) in engine.held.items() if end_s <= self.now_s]
        if any(number in self.killers for number in due):
            self.kills += 1
            self._die(engine)
        elif self.killed_each_s and self.dice.random() < TICK_S / self.killed_each_s:
            self._die(engine)
        else:
            self._finish(engine, due)

    def _die(self, engine: Engine) -> None:
        row = ["crashed", 0, 0, 0, 0, "", "{}", ""]
        held = [(n, [request_id(n), call, *row]) for n, (call, _) in engine.held.items()]
        words = self._call("release", engine, [item for _, item in held])
        for (number, _), word in zip(held, words, strict=True):
            assert word in (b"queued", b"dead"), word
            if word == b"dead":
                self.convicted[number] = self.now_s
        engine.held.clear()
        engine.back_s = self.now_s + RESTART_S

    def _finish(self, engine: Engine, numbers: list[int]) -> None:
        row = ["done", "", 3, 0, 7, "{}", "answer", 0, 0]
        items = [[request_id(n), engine.held.pop(n)[0], *row] for n in numbers]
        assert set(self._call("finish", engine, items)) <= {b"ok"}
        self.done |= set(numbers)

    def _call(self, step: str, engine: Engine, items: list[list[object]]) -> list[bytes]:
        if not items:
            return []
        flat = [value for item in items for value in item]
        words: list[bytes] = self.library.fcall(step, engine.name, len(items), *flat)
        return words

    def _arrive(self) -> None:
        rate = LOAD * self.slots * len(self.engines) / (sum(LENGTH_S) / 2)
        count = int(rate * TICK_S + self.dice.random())
        rows: list[object] = []
        for number in range(self.admitted, self.admitted + count):
            head = [request_id(number), "normal", "ann", 1, 86_400_000, 1, "m", -1, 5, 0, 0, 0]
            rows += [*head, "", "", 0, 0, 0, 0, "{}", "body"]
        self.library.fcall("admit", "", count, *rows)
        self.admitted += count

    def _take(self, engine: Engine) -> None:
        engine.call += 1
        free = self.slots - len(engine.held)
        arguments = [engine.name, engine.call, self.slots, 1, free, 1, "normal", free]
        for row in self.library.fcall("take", *arguments)[0]:
            number = int(row[0][-26:])
            span = FUSE_S if number in self.killers else LENGTH_S
            engine.held[number] = (engine.call, self.now_s + self.dice.uniform(*span))
