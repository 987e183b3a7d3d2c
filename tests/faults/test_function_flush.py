"""Somebody flushes the function library under load."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from tests.faults.clients import counts, crowd
from tests.faults.scene import Scene, Watched, errors
from tests.flow.identities import assert_identities

pytestmark = pytest.mark.anyio


async def test_clients_do_not_notice_that_functions_are_flushed(
    scene: Scene, http: aiohttp.ClientSession
) -> None:
    """Ten times in a second; every answer is right, whole or streamed."""
    watched = [Watched(scene.producer), Watched(scene.worker)]
    async with crowd(scene, http, 8, 10) as said:
        for _ in range(10):
            await scene.redis.function_flush()
            await asyncio.sleep(0.1)
    assert set(counts(said)) == {"right"}
    assert len(said) > 10
    assert [errors(one.events()) for one in watched] == [[], []]
    await assert_identities(scene)
