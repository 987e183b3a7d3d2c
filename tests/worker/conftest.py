"""What the worker's tests ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.worker.desk import Desk


@pytest.fixture
async def desk(redis_url: str) -> AsyncIterator[Desk]:
    """A pool with short leases on the session's server."""
    one = Desk(redis_url)
    await one.open()
    yield one
    await one.close()
