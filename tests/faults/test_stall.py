"""Redis stands still for longer than a lease: connections stay, no call is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp
import pytest
from tests.faults.clients import counts, crowd, served
from tests.faults.scene import Scene, Watched, errors
from tests.flow.identities import assert_identities
from tests.flow.system import QUICK

pytestmark = pytest.mark.anyio
STALL_S = 3.0
Fault = Callable[[Scene], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def stopped(scene: Scene) -> AsyncIterator[None]:
    scene.server.pause()
    await asyncio.sleep(STALL_S)
    scene.server.resume()
    yield


@asynccontextmanager
async def sleeping(scene: Scene) -> AsyncIterator[None]:
    """As behind one slow command of somebody else."""
    await scene.redis.execute_command("DEBUG", "SLEEP", STALL_S)
    yield


@pytest.mark.parametrize("fault", [stopped, pytest.param(sleeping, marks=pytest.mark.slow)])
async def test_a_server_that_stood_still_costs_time_alone(
    scene: Scene, http: aiohttp.ClientSession, fault: Fault
) -> None:
    """Twice a lease: every answer is right, nothing runs twice, nothing is blamed."""
    assert 2 * QUICK.lease_ms <= STALL_S * 1000
    watched = [Watched(scene.producer), Watched(scene.worker)]
    async with crowd(scene, http, 8, 30) as said:
        await asyncio.sleep(0.5)
        async with fault(scene):
            await served(http, scene.url)
    assert set(counts(said)) == {"right"}
    shown = [await scene.show(one.request_id) for one in said]
    assert {(one.takes, one.attempts, one.crashes) for one in shown} == {(1, 0, 0)}
    assert [errors(one.events()) for one in watched] == [[], []]
    await assert_identities(scene)
