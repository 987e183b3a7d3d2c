"""How long a killed worker's requests may wait."""

from __future__ import annotations

import pytest
from tests.chaos.checker import check
from tests.chaos.world import World, small_world


@pytest.fixture
def world() -> World:
    return small_world()


def grant(world: World, at_s: float = 10.0, wait_ms: int = 100, crashes: int = 1) -> None:
    world.event("granted", id="x", wait_ms=wait_ms, crashes=crashes, delivered=0, reasons=[])
    world.events[-1]["at_s"] = at_s


def test_waits_for_a_grant_are_told_apart(world: World) -> None:
    """Two seconds of six were an outage, two a lease of quiet; a second crash makes a suspect."""
    grant(world, at_s=10.0, wait_ms=2_100)
    grant(world, at_s=12.0, wait_ms=9_000, crashes=2)
    grant(world, at_s=20.0, wait_ms=6_000)
    world.event("fault", kind="kill redis", name="kill", target="redis", from_s=17.5, until_s=19.5)
    world.event("stalled", from_s=30.0, until_s=31.0)
    verdict = check(world.events, world.state)
    alive, again, away = [
        (value["count"], value["max"])
        for name, value in verdict.figures.items()
        if name.startswith("next grant")
    ]
    assert (alive, again, away) == ((1, 2.1), (1, 9.0), (1, 2.0))
    assert verdict.good, verdict.text()


def test_one_late_grant_in_a_hundred_is_good(world: World) -> None:
    grant(world, wait_ms=9_000)
    for _ in range(99):
        grant(world, wait_ms=2_700)
    assert world.problems().endswith("good")


def test_two_late_grants_in_a_hundred_are_told(world: World) -> None:
    for _ in range(2):
        grant(world, wait_ms=2_760)
    for _ in range(98):
        grant(world, wait_ms=100)
    assert "a killed worker's request waited too long" in world.problems()


def test_a_busy_machine_tells_nothing_of_waits(world: World) -> None:
    for _ in range(100):
        grant(world, wait_ms=9_000)
    world.event("stalled", from_s=100.0, until_s=140.0)
    assert world.problems().endswith("good")
