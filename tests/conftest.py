"""What every test may ask for: a real server of its own session, and an empty database on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.servers import Server, start_server


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Forebay runs on asyncio alone, so the tests do."""
    return "asyncio"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the session, without persistence. Don't stop it: start your own for that."""
    with start_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def redis_url(server: Server) -> str:
    """The URL of the session's server, emptied. Function libraries stay: FLUSHALL spares them."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server.url


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may pause, kill and misconfigure."""
    with start_server(tmp_path) as running:
        yield running
