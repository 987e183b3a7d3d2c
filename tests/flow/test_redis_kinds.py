"""A cluster, and servers under Sentinel: requests pass, and go on passing after a primary's death.

The rest of the flow tests runs on both by `scripts/test-redis-kinds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from redis.crc import key_slot
from tests.clusters import Cluster
from tests.flow.failing import KEY, SERVING_WITHIN_S, Failing, failing
from tests.flow.identities import assert_identities, keys_without_ttl
from tests.flow.load import Load, body_of
from tests.flow.system import System, running
from tests.sentinels import Watched

from forebay_shared.keys import POOLS

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["cluster", "sentinel"])
def redis_below(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Failing]:
    one = failing(request.param, tmp_path)
    yield one
    one.below.stop()


async def test_serves_and_serves_on_after_its_primary_died(
    redis_below: Failing, tmp_path: Path
) -> None:
    """Answers, streams and later answers; then SIGKILL, and again within 5 s without restart."""
    server = redis_below.below
    async with running(tmp_path, ["sim"], producers=1, server=server) as system:
        await system.know("sim")
        await ask(system)
        assert_slots(server)
        load = Load(system)
        async with load.running(4):
            await load.until_accepted(2)
            redis_below.lose()
            await redis_below.until_replaced()
            assert await load.until_answered() <= SERVING_WITHIN_S
        await ask(system)
        await assert_identities(system)
        assert not await keys_without_ttl(system)
        assert_slots(server)
        assert all(child.code is None for child in (*system.serving, *system.working))


async def ask(system: System) -> None:
    url = f"{system.producers[0]}/v1/chat/completions"
    async with aiohttp.ClientSession() as client:
        async with client.post(url, json=body_of("whole")) as answer:
            assert answer.status == 200, await answer.text()
        async with client.post(url, json=body_of("streamed", stream=True)) as answer:
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")


def assert_slots(server: Cluster | Watched) -> None:
    """Every key of the pool is in the pool's slot; the list of pools has its own."""
    if not isinstance(server, Cluster):
        return
    found = {key.decode() for node in server.primaries() for key in node.client.scan_iter()}
    slots = {key_slot(key.encode()) for key in found - {POOLS}}
    assert len(found) > 10 and slots == {key_slot(KEY.encode())}
    assert POOLS in found and key_slot(POOLS.encode()) not in slots
