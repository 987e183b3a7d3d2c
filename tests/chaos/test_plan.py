"""The plan is the seed's alone, and leaves no kind of fault out."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from tests.chaos.plan import DECKS, LANES, Fault, Lane, deal
from tests.chaos.scene import SCENES

SIM = SCENES["sim"]
DRAINS_S: dict[Lane, float] = {"process": 20.0, "redis": 0.0}


def decks(lane: Lane, seed: int, count: int, *only: str) -> list[list[Fault]]:
    return list(islice(deal(lane, seed, SIM.roles, SIM.lease_s, only), count))


@pytest.mark.parametrize("lane", LANES)
def test_same_seed_same_faults(lane: Lane) -> None:
    assert decks(lane, 7, 5) == decks(lane, 7, 5)
    assert decks(lane, 7, 5) != decks(lane, 8, 5)


@pytest.mark.parametrize("lane", LANES)
def test_every_deck_has_every_kind(lane: Lane) -> None:
    wanted = Counter({str(kind): kind.copies for kind in DECKS[lane]})
    for deck in decks(lane, 7, 3):
        assert Counter(fault.kind for fault in deck) == wanted


def test_only_some_kinds() -> None:
    (deck,) = decks("process", 7, 1, "kill producer", "kill redis")
    assert [fault.kind for fault in deck] == ["kill producer"]
    assert deck[0].target in SIM.roles["producer"]
    assert decks("redis", 7, 1, "kill producer") == []


def test_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="no such faults: kill cat; clock process, "):
        decks("process", 7, 1, "kill cat")


def test_half_an_hour_has_the_kills_that_are_wanted() -> None:
    """A third of 100 workers, 30 producers, 20 engines and 15 times Redis, with room to spare.

    Drains and rolling restarts take some 20 s of each deck of the first lane.
    """
    kills: Counter[str] = Counter()
    for lane, drains_s in DRAINS_S.items():
        left_s = 1_800.0
        for deck in decks(lane, 7, 200):
            left_s -= drains_s + sum(fault.gap_s + fault.hold_s for fault in deck)
            if left_s < 0:
                break
            kills.update(fault.kind for fault in deck if fault.name == "kill")
    wanted = {"kill worker": 34, "kill producer": 10, "kill engine": 7, "kill redis": 5}
    assert {kind for kind, count in wanted.items() if kills[kind] < 1.5 * count} == set(), kills
