"""Many small requests leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.soak.run import soak

pytestmark = pytest.mark.anyio


async def check(folder: Path, requests: int, workers: int, *, quick: bool) -> None:
    soaked = await soak(folder, requests, workers, quick=quick)
    # The default run shares its processors with whoever is there: SLOWLOG is scripts/soak's.
    problems = [one for one in soaked.problems if not one.startswith("slower than 5 ms")]
    assert problems == [], soaked.text()


async def test_two_thousand_requests_leave_nothing(tmp_path: Path) -> None:
    await check(tmp_path, 2_000, workers=1, quick=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_twenty_thousand_requests_leave_nothing(tmp_path: Path) -> None:
    await check(tmp_path, 20_000, workers=2, quick=False)
