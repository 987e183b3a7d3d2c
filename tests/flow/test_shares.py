"""Classes and tenants share the pool's tokens by weight, whatever their requests cost."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.flow.identities import assert_identities
from tests.flow.processes import until
from tests.flow.system import QUICK, System, running

from forebay_shared.calls import Operator, Shown
from forebay_shared.records import Result
from forebay_shared.settings import ClassSettings

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

WEIGHTS = {"gold": 8.0, "silver": 2.0, "bronze": 1.0}
WINDOW = 3_000
"""Requests looked at: the first so many grants, while every class is backlogged."""
ASKED = {"gold": 2_900, "silver": 900, "bronze": 500}
LONGEST = {"gold": 40, "silver": 120, "bronze": 80}
"""max_tokens by class: requests of different classes cost unlike."""
SETTINGS = QUICK.model_copy(
    update={
        "classes": tuple(
            ClassSettings(name=name, weight=weight, depth=10_000)
            for name, weight in WEIGHTS.items()
        ),
        "lease_ms": 15_000,
        "renew_ms": 5_000,
        "worker_ttl_ms": 30_000,
    }
)
KEYS = {"honest": "learned", "greedy": "max_tokens"}
"""Two tenants; the greedy one is estimated by a max_tokens far above its lengths."""


def keys_file(folder: Path) -> Path:
    rows = [
        f'[[keys]]\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\n'
        f'tenant = "{name}"\nhighest_class = "gold"\nestimate = "{estimate}"\n'
        for name, estimate in KEYS.items()
    ]
    path = folder / "keys.toml"
    path.write_text("\n".join(rows))
    return path


def plan() -> list[tuple[str, str, dict[str, Any]]]:
    """(tenant, class, body), classes mixed."""
    rows = []
    for class_name, count in ASKED.items():
        for number in range(count):
            tenant = "greedy" if number % 2 else "honest"
            most = 400 if tenant == "greedy" else LONGEST[class_name]
            text = f"{class_name} {number} " + "word " * (number % 17)
            rows.append((number / count, tenant, class_name, text, most))
    rows.sort()
    return [
        (tenant, name, {"model": "sim", "messages": [{"role": "user", "content": text}],
                        "max_tokens": most})
        for _, tenant, name, text, most in rows
    ]  # fmt: skip


async def submit_all(system: System) -> list[str]:
    """All of the plan, asynchronously, by turns through the replicas; their ids."""
    gate = asyncio.Semaphore(64)

    async def submit(number: int, tenant: str, name: str, body: dict[str, Any]) -> str:
        url = system.producers[number % len(system.producers)]
        headers = {
            "Authorization": f"Bearer {tenant}",
            "X-Priority": name,
            "Prefer": "respond-async",
        }
        path = "/v1/chat/completions"
        async with gate, client.post(url + path, json=body, headers=headers) as answer:
            assert answer.status == 202, await answer.text()
            return answer.headers["Location"].rpartition("/")[2]

    async with aiohttp.ClientSession() as client:
        rows = [submit(number, *row) for number, row in enumerate(plan())]
        return await asyncio.gather(*rows)


def cost_of(row: Shown) -> float:
    usage = Result.decode(row.result).usage
    price = SETTINGS.cost
    fresh = usage.prompt - usage.cached
    return fresh * price.prompt + usage.cached * price.cached + usage.output * price.output


def shares(rows: Sequence[Shown]) -> dict[str, float]:
    """Share of the settled tokens by class, in percent."""
    tokens: Counter[str] = Counter()
    for row in rows:
        tokens[row.class_name] += cost_of(row)
    return {name: 100 * tokens[name] / sum(tokens.values()) for name in WEIGHTS}


async def in_order_of_grants(system: System, ids: Sequence[str]) -> list[Shown]:
    """All requests, once all of them are done."""

    async def done() -> bool:
        return bool((await system.status())["ledger"].get("done", 0) == len(ids))

    await until(done, 180, "all are done", every_s=0.2)
    rows = [row for row in [await system.intake.show(one) for one in ids] if row is not None]
    return sorted(rows, key=lambda row: row.taken_ms)


async def test_classes_share_by_weight(tmp_path: Path) -> None:
    """8:2:1 under a standing backlog, 2 producers × 4 workers: within 2 points of 3,000."""
    async with running(tmp_path, producers=0, settings=SETTINGS) as system:
        for _ in range(2):
            await system.add_producer("--keys", str(keys_file(tmp_path)))
        operator = Operator(system.library)
        await operator.switch(paused=True)
        for _ in range(4):
            await system.add_worker("sim", "--slots", "16", "--sim-speed", "8")
        ids = await submit_all(system)
        await operator.switch(paused=False)
        rows = await in_order_of_grants(system, ids)
        await assert_identities(system)
    window, rest = rows[:WINDOW], rows[WINDOW:]
    assert {row.class_name for row in rest} == set(WEIGHTS), "a class ran out of requests"
    assert {(row.takes, row.state) for row in rows} == {(1, "done")}
    got = shares(window)
    wanted = {name: 100 * weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
    print("\nshares of settled tokens:", json.dumps(got), "wanted:", json.dumps(wanted))
    assert got == pytest.approx(wanted, abs=2), got
