"""What goes wrong and when: drawn from the seed alone, before anything runs.

Two lanes run side by side, one for Forebay's processes, one for Redis and the way to it. Each lane
deals its faults from a shuffled deck, so that even a short run has every kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

Lane = Literal["process", "redis"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: whom it strikes, how long it lasts, and how often it is in the deck."""

    name: str
    targets: str
    least_s: float
    most_s: float
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `gap_s` of quiet, then `hold_s` until it is undone; `dice` for its details."""

    lane: Lane
    name: str
    target: str
    gap_s: float
    hold_s: float
    dice: int


# A paused worker and a stalled one sleep past their lease of 2 s; a killed engine stays away for
# longer than the 2 s after which its worker asks for its health.
PROCESS = (
    Kind("kill", "worker", 0.2, 2.0, copies=2),
    Kind("pause", "worker", 2.5, 4.5),
    Kind("drain", "worker", 0.0, 0.5),
    Kind("kill", "producer", 0.2, 2.0),
    Kind("pause", "producer", 0.5, 3.0),
    Kind("drain", "producer", 0.0, 0.5),
    Kind("kill", "engine", 3.0, 4.0),
)
REDIS = (
    Kind("kill", "redis", 0.1, 2.0),
    Kind("pause", "redis", 1.0, 4.0),
    Kind("cut", "link", 0.0, 0.0),
    Kind("cut", "all links", 0.0, 0.0),
    Kind("lose", "all links", 2.0, 3.0, copies=2),
    Kind("stall", "link", 2.5, 4.0),
    Kind("flush functions", "redis", 0.0, 0.0),
)
DECKS: dict[Lane, tuple[Kind, ...]] = {"process": PROCESS, "redis": REDIS}
GAP_S = (0.5, 2.0)


def make_plan(
    seed: int, length_s: float, names: dict[str, Sequence[str]], only: Sequence[str] = ()
) -> dict[Lane, list[Fault]]:
    """The faults of each lane, in order, as many as fit into `length_s`.

    `names`: the processes by role: worker, producer, engine. `only`: kinds to deal, as
    `kill worker`; empty for all. Raises ValueError for a kind that does not exist.
    """
    known = {f"{kind.name} {kind.targets}" for deck in DECKS.values() for kind in deck}
    if wrong := set(only) - known:
        raise ValueError(f"no such faults: {', '.join(sorted(wrong))}; {', '.join(sorted(known))}")
    return {lane: _deal(lane, Random(f"{seed}/{lane}"), length_s, names, only) for lane in DECKS}


def _deal(
    lane: Lane, dice: Random, length_s: float, names: dict[str, Sequence[str]], only: Sequence[str]
) -> list[Fault]:
    deck = [
        kind
        for kind in DECKS[lane]
        for _ in range(kind.copies)
        if not only or f"{kind.name} {kind.targets}" in only
    ]
    faults: list[Fault] = []
    left_s = length_s
    while deck and left_s > 0:
        dice.shuffle(deck)
        for kind in deck:
            fault = _draw(lane, kind, dice, names)
            left_s -= fault.gap_s + fault.hold_s
            if left_s > 0:
                faults.append(fault)
    return faults


def _draw(lane: Lane, kind: Kind, dice: Random, names: dict[str, Sequence[str]]) -> Fault:
    processes = [name for role in ("worker", "producer") for name in names[role]]
    targets = names.get(kind.targets) or {"link": processes}.get(kind.targets, [kind.targets])
    return Fault(
        lane=lane,
        name=kind.name,
        target=dice.choice(targets),
        gap_s=round(dice.uniform(*GAP_S), 3),
        hold_s=round(dice.uniform(kind.least_s, kind.most_s), 3),
        dice=dice.getrandbits(32),
    )
