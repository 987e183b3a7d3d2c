"""One system for all faults: processes that have survived one must survive the next."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests.faults.scene import Scene, playing


@pytest.fixture(scope="package")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """A producer and a worker with the simulated engine, each on a way of its own to Redis."""
    async with playing(tmp_path_factory.mktemp("faults")) as one:
        yield one


@pytest.fixture
async def scene(stage: Scene) -> AsyncIterator[Scene]:
    """The same, well before and after the test: ready, and no process has ended or complained."""
    await stage.well()
    yield stage
    await stage.well()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as one:
        yield one
