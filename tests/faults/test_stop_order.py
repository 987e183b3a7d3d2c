"""Whoever stops containers stops them in an order that costs nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from tests.flow.processes import ROOT

from forebay_producer.options import Timings
from forebay_worker.options import WorkOptions

UNITS_S = {"s": 1, "m": 60}


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return found


def test_compose_stops_workers_before_their_engine_and_redis_last(
    services: dict[str, Any],
) -> None:
    """Who depends on another is stopped before it."""
    assert {"redis", "vllm"} <= set(services["worker"]["depends_on"])
    assert "redis" in services["producer"]["depends_on"]
    assert "depends_on" not in services["redis"]


def test_compose_waits_for_longer_than_processes_drain(services: dict[str, Any]) -> None:
    """Than the grace of a worker, and the serving on and the grace of a producer, and 2 s each."""
    timings = Timings()
    assert seconds(services["worker"]["stop_grace_period"]) > WorkOptions("").grace_s + 2
    drain_s = timings.serve_on_s + timings.grace_s + 2
    assert seconds(services["producer"]["stop_grace_period"]) > drain_s


def test_the_docs_name_the_worker_first() -> None:
    """Then the engine; so nothing that runs counts as crashed."""
    page = (ROOT / "docs" / "operations.md").read_text()
    drain, stop = page.index("1. `forebay drain WORKER`"), page.index("2. Stop vLLM")
    assert drain < stop


def seconds(period: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([sm])", period).groups()  # type: ignore[union-attr]
    return int(number) * UNITS_S[unit]
