"""Suspects: who kills engines is found in a fleet under load, and nobody else is convicted.

Figures over many seeds: scripts/test -m slow tests/shared/library/test_suspects.py
"""

from __future__ import annotations

from statistics import median

import pytest
from redis import Redis
from tests.shared.library.driver import HeldLibrary
from tests.shared.library.fleet import Fleet
from tests.shared.library.rig import POOL

from forebay_shared.settings import PoolSettings

KILLER = 40


def fleet_of(client: Redis, seed: int, workers: int, killed_each_s: float = 0.0) -> Fleet:
    client.flushall()
    library = HeldLibrary(client, POOL, PoolSettings())
    library.fcall("found", library.text)
    return Fleet(library, seed, workers, frozenset({KILLER}), killed_each_s)


def convict(client: Redis, seed: int, workers: int, arrivals_s: float) -> tuple[int, float]:
    """Engine deaths and seconds until the killer was convicted; all others end as done."""
    fleet = fleet_of(client, seed, workers)
    fleet.run(until_s=3_600, arrivals_until_s=arrivals_s)
    assert list(fleet.convicted) == [KILLER]
    assert len(fleet.done) == fleet.admitted - 1
    return fleet.kills, fleet.convicted[KILLER]


@pytest.mark.parametrize(("workers", "deaths", "within_s"), [(8, 5, 120), (2, 5, 600)])
def test_a_killer_is_convicted_and_its_neighbours_complete(
    client: Redis, workers: int, deaths: int, within_s: float
) -> None:
    """With more workers it only finds the next engine sooner."""
    for seed in range(2):
        kills, took_s = convict(client, seed, workers, arrivals_s=25)
        assert kills <= deaths
        assert took_s <= within_s


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("workers", [8, 2])
def test_figures_of_a_killer(
    client: Redis, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    """25 seeds."""
    found = [convict(client, seed, workers, arrivals_s=90) for seed in range(25)]
    kills, took_s = zip(*found, strict=True)
    with capsys.disabled():
        print(f"\n{workers} workers of 32 slots, {len(found)} seeds: engine deaths {median(kills)}")
        print(f"(at most {max(kills)}), {median(took_s):.0f} s (at most {max(took_s):.0f} s)")
    assert max(kills) <= 6


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_figures_of_innocents_among_dying_workers(
    client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every worker also dies each 5 minutes, for no fault of what it ran."""
    innocent, total = 0, 0
    for seed in range(6):
        fleet = fleet_of(client, seed, 8, killed_each_s=300)
        fleet.run(until_s=7_200, arrivals_until_s=600)
        assert KILLER in fleet.convicted
        innocent += len(fleet.convicted) - 1
        total += fleet.admitted
    with capsys.disabled():
        print(f"\nevery worker dies each 5 min: {innocent} of {total:,} innocents convicted")
    assert innocent <= total / 10_000
