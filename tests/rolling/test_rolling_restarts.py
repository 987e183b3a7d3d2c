"""Deploys that nobody notices: the short form of `scripts/rolling-restarts`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rolling.run import run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
RESTARTS = 2


async def test_no_client_notices_that_every_process_is_replaced(tmp_path: Path) -> None:
    """Official SDKs with default settings, whole answers and streams, through a balancer that obeys
    probes: no error, no wrong text, no attempt and no crash counted."""
    report = await run(tmp_path, RESTARTS)
    print(report.text())
    assert report.faults == []
    assert report.processes_replaced == RESTARTS * 5
    assert sum(report.answers.values()) > 20
