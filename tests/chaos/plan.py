"""What goes wrong and when: drawn from the seed alone, before anything runs.

Two lanes run side by side, one for Forebay's processes, one for Redis and the way to it. Each lane
deals its faults from a deck that is shuffled anew each time, and plays at least one whole deck: so
even a short run has every kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

Lane = Literal["process", "redis"]
LANES: tuple[Lane, ...] = get_args(Lane)
Roles = Mapping[str, Sequence[str]]
"""The processes by role: worker, producer, engine."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: whom it strikes, how long it lasts, and how often it is in the deck.

    `in_leases`: its lengths are not seconds but leases.
    """

    name: str
    targets: str
    least: float = 0.0
    most: float = 0.0
    copies: int = 1
    in_leases: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.targets}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `gap_s` of quiet, then `hold_s` until it is undone; `dice` for its details."""

    lane: Lane
    kind: str
    name: str
    target: str
    gap_s: float
    hold_s: float
    dice: int


# A paused worker and a stalled one sleep past their lease; a killed engine stays away for longer
# than the 2 s after which its worker asks for its health.
PROCESS = (
    Kind("kill", "worker", 0.2, 2.0, copies=3),
    Kind("pause", "worker", 1.25, 2.25, in_leases=True),
    Kind("drain", "worker", 0.0, 0.5),
    Kind("roll", "workers"),
    Kind("kill", "producer", 0.2, 2.0),
    Kind("pause", "producer", 0.5, 3.0),
    Kind("drain", "producer", 0.0, 0.5),
    Kind("roll", "producers"),
    Kind("kill", "engine", 3.0, 4.0),
    Kind("pause", "engine", 0.5, 5.0),
    Kind("clock", "process"),
)
REDIS = (
    Kind("kill", "redis", 0.1, 2.0),
    Kind("pause", "redis", 0.5, 2.0, in_leases=True),
    Kind("cut", "link"),
    Kind("cut", "all links"),
    Kind("lose", "all links", 2.0, 3.0, copies=2),
    Kind("stall", "link", 1.25, 2.0, in_leases=True),
    Kind("flush functions", "redis"),
)
DECKS: Mapping[Lane, tuple[Kind, ...]] = {"process": PROCESS, "redis": REDIS}
# Redis strikes everybody: with longer gaps there is time to see workers die while it lives.
GAP_S: Mapping[Lane, tuple[float, float]] = {"process": (0.5, 2.0), "redis": (1.0, 4.0)}


def deal(
    lane: Lane, seed: int, roles: Roles, lease_s: float, only: Sequence[str] = ()
) -> Iterator[list[Fault]]:
    """One shuffled deck of a lane after another, without end; none where `only` leaves nothing.

    `only`: kinds to deal, as `kill worker`; empty for all. Raises ValueError for a kind that does
    not exist.
    """
    known = {str(kind) for deck in DECKS.values() for kind in deck}
    if wrong := set(only) - known:
        raise ValueError(f"no such faults: {', '.join(sorted(wrong))}; {', '.join(sorted(known))}")
    dice = Random(f"{seed}/{lane}")
    deck = [
        kind for kind in DECKS[lane] for _ in range(kind.copies) if not only or str(kind) in only
    ]
    while deck:
        dice.shuffle(deck)
        yield [_draw(lane, kind, dice, roles, lease_s) for kind in deck]


def _draw(lane: Lane, kind: Kind, dice: Random, roles: Roles, lease_s: float) -> Fault:
    unit_s = lease_s if kind.in_leases else 1.0
    return Fault(
        lane=lane,
        kind=str(kind),
        name=kind.name,
        target=dice.choice(_targets(kind.targets, roles)),
        gap_s=round(dice.uniform(*GAP_S[lane]), 3),
        hold_s=round(unit_s * dice.uniform(kind.least, kind.most), 3),
        dice=dice.getrandbits(32),
    )


def _targets(kind: str, roles: Roles) -> Sequence[str]:
    """Names to choose from; what is no role's is a name itself."""
    linked = [*roles["worker"], *roles["producer"]]
    groups = dict(roles) | {"link": linked, "process": linked}
    return groups.get(kind, [kind])
