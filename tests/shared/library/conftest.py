"""A pool on the session's server for each test, with a clock that the test holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from tests.servers import Server
from tests.shared.library.driver import HeldLibrary
from tests.shared.library.rig import POOL, Rig

from forebay_shared.settings import PoolSettings


@pytest.fixture
def client(server: Server) -> Iterator[Redis]:
    """A connection to the session's server, emptied."""
    with Redis.from_url(server.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def rig(client: Redis) -> Rig:
    """A pool with the default settings, and its oracle: each call is compared whole."""
    return Rig(client, PoolSettings())


@pytest.fixture
def library(client: Redis) -> HeldLibrary:
    """A pool with the default settings and no oracle: for what foreign hands do."""
    library = HeldLibrary(client, POOL, PoolSettings())
    library.fcall("found", library.text)
    return library
