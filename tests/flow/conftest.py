"""A whole system beside two engines: the simulator, and behind the marker `vllm` real vLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from tests.flow.deployments import KINDS, deployments
from tests.flow.engines import (
    EngineUnderTest,
    embedder,
    embedding_engine,
    embedding_url,
    engine_pair,
    engine_urls,
    start_all,
)
from tests.flow.system import System, running

__all__ = ["embedder", "embedding_engine", "embedding_url", "engine_pair", "engine_urls"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--redis-kind", choices=KINDS, default="single", help="Redis below the system")


@pytest.fixture(scope="session", autouse=True)
def redis_kind(pytestconfig: pytest.Config) -> Iterator[str]:
    """Every system of the session has a Redis of this kind."""
    # The option is unknown where pytest was not started with this folder.
    deployments.kind = pytestconfig.getoption("--redis-kind", "single")
    yield deployments.kind
    deployments.stop()


async def _beside(
    engines: Sequence[EngineUnderTest], factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    start_all([engine.server for engine in engines])
    urls, settings = [engine.url for engine in engines], engines[0].settings
    async with running(factory.mktemp("system"), urls, settings=settings) as one:
        await one.know(engines[0].model)
        yield one


@pytest.fixture(scope="module")
async def shared_system(
    engine_pair: list[EngineUnderTest], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    """Two producers, two workers, two engines, a server, for tests that leave them as they are."""
    async for one in _beside(engine_pair, tmp_path_factory):
        yield one


@pytest.fixture
async def system(
    engine_urls: list[EngineUnderTest], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[System]:
    """The same, of this test alone: it may kill what it likes."""
    async for one in _beside(engine_urls, tmp_path_factory):
        yield one


@pytest.fixture
def model(engine_urls: list[EngineUnderTest]) -> str:
    return engine_urls[0].model
