"""Backlogged parties get tokens by weight, however their requests are estimated."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence

import pytest
from redis.asyncio import Redis
from tests.fairness.plant import Job, Plant, Served, settings_for, shares, use_mutant
from tests.servers import Server

from forebay_shared.connect import connect

pytestmark = pytest.mark.anyio

WEIGHTS = {"gold": 8.0, "silver": 2.0, "bronze": 1.0}
ASKED = {"gold": 2_900, "silver": 500, "bronze": 400}
LENGTHS = {"gold": 60, "silver": 150, "bronze": 90}
LONGEST = 300
"""No output is longer; what the greedy tenant names as its estimate, some five times its mean."""
WINDOW = 3_000
WARM_UP = 300
"""Requests served before, so that estimates have been learned."""
CLAMPED_CLASS = (
    "return math.max(a, P.get(q, 'F:' .. name, a))",
    "return math.max(P.get(q, 'v', 0), a, P.get(q, 'F:' .. name, a))",
)
CLAMPED_FLOW = (
    "local start = math.max(a or v, tonumber(",
    "local start = math.max(a or v, v, tonumber(",
)
UNSETTLED = ("local owed = used - tonumber(record.charged)", "local owed = 0")


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture(scope="module")
async def plants(server: Server) -> list[Plant]:
    """What three seeds gave."""
    client = connect(server.url)
    served = [await run(client, seed) for seed in (1, 2, 3)]
    await client.aclose()
    return served


def length(dice: random.Random, mean: int) -> int:
    """Heavy-tailed, from 1 to LONGEST tokens."""
    return max(1, min(LONGEST, int(dice.lognormvariate(0, 1) * mean * 0.6)))


def jobs(seed: int) -> list[Job]:
    """All classes backlogged. Four tenants in gold, one of them estimates by max_tokens."""
    dice = random.Random(seed)
    rows = []
    for name, count in ASKED.items():
        for number in range(count):
            greedy = name == "gold" and number % 4 == 3
            tenant, estimate = ("greedy", LONGEST) if greedy else (f"honest{number % 4}", -1)
            rows.append(Job(name, tenant, length(dice, LENGTHS[name]), estimate))
    dice.shuffle(rows)
    return rows


async def run(redis: Redis, seed: int) -> Plant:
    """A plant of 4 workers × 16 slots that has granted the window."""
    await redis.flushall()
    plant = Plant(redis, settings_for(WEIGHTS), workers=4, slots=16)
    await plant.start()
    await plant.admit(jobs(seed + 1_000)[:WARM_UP])
    await plant.run(lambda: False)
    plant.forget()
    await plant.admit(jobs(seed))
    await plant.run(lambda: len(plant.served) >= WINDOW)
    return plant


async def window_of(redis: Redis, seed: int) -> list[Served]:
    """The first grants."""
    return (await run(redis, seed)).served[:WINDOW]


def worst_error(served: Sequence[Served]) -> float:
    """Largest difference between a class's share and its due, in points."""
    got = shares(served, lambda job: job.class_name)
    total = sum(WEIGHTS.values())
    return max(abs(got[name] - 100 * weight / total) for name, weight in WEIGHTS.items())


def greedy_share(served: Sequence[Served]) -> float:
    """Percent of gold's tokens that the tenant got which estimates by max_tokens; 25 is its due."""
    gold = [one for one in served if one.job.class_name == "gold"]
    return shares(gold, lambda job: job.tenant)["greedy"]


async def test_classes_and_tenants_share_by_weight(plants: list[Plant]) -> None:
    """8:2:1 over 3,000 grants of unlike costs: classes and tenants within 2 points."""
    windows = [plant.served[:WINDOW] for plant in plants]
    errors = [round(worst_error(served), 2) for served in windows]
    greedy = [round(greedy_share(served), 1) for served in windows]
    print(f"\nworst share error by seed: {errors} points; greedy tenant of 25 %: {greedy}")
    assert max(errors) <= 2
    assert greedy == pytest.approx([25, 25, 25], abs=2)


@pytest.mark.parametrize("mutant", [CLAMPED_CLASS, UNSETTLED], ids=["clamp at take", "no settle"])
async def test_broken_class_rules_are_seen(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, str]
) -> None:
    """The test above fails for a clamp of S at every take, and without settlement."""
    use_mutant(monkeypatch, *mutant)
    error = worst_error(await window_of(redis, 1))
    print(f"\nworst share error of the mutant: {error:.2f} points")
    assert error > 4


async def test_broken_flow_rule_is_seen(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Likewise for tenants: a clamp takes the refunds of who estimates by max_tokens."""
    use_mutant(monkeypatch, *CLAMPED_FLOW)
    assert greedy_share(await window_of(redis, 1)) < 20


def gaps(plant: Plant) -> list[float]:
    """|W_f/w_f - W_g/w_g| of gold and silver after each end, in units of l_f/w_f + l_g/w_g."""
    longest = 2.0 * LONGEST + 10
    unit = longest / WEIGHTS["gold"] + longest / WEIGHTS["silver"]
    tokens, rows = dict.fromkeys(WEIGHTS, 0.0), []
    for one in plant.done:
        tokens[one.job.class_name] += one.cost
        gap = tokens["gold"] / WEIGHTS["gold"] - tokens["silver"] / WEIGHTS["silver"]
        rows.append(abs(gap) / unit)
    return rows


async def test_service_gap_is_bounded_and_does_not_grow(plants: list[Plant]) -> None:
    """≤ 4 (l_f/w_f + l_g/w_g); median over the seeds: over all ≤ 1.25 × over the first half."""
    rows = [gaps(plant) for plant in plants]
    pairs = [(round(max(row[: len(row) // 2]), 2), round(max(row), 2)) for row in rows]
    print(f"\nservice gap in units of the bound, first half and all, by seed: {pairs}")
    assert max(whole for _, whole in pairs) <= 4
    assert sorted(whole / first for first, whole in pairs)[1] <= 1.25
