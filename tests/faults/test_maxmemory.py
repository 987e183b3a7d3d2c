"""Redis is at maxmemory: what it holds must be able to leave."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from tests.faults.clients import REFUSED, ask, body_of, counts, served, submit
from tests.faults.scene import Scene, Watched, errors
from tests.flow.identities import assert_identities
from tests.flow.processes import until

pytestmark = pytest.mark.anyio
BALLAST = "x" * 60_000
OVER_BYTES = 8 * len(BALLAST)
"""Redis is beyond its limit by so much: several requests must end before it takes any."""


async def test_a_full_redis_empties_itself_and_serves_again(
    scene: Scene, http: aiohttp.ClientSession
) -> None:
    """New requests are refused with 503, running and waiting ones end well, memory falls, and
    service resumes with no help."""
    watched = [Watched(scene.producer), Watched(scene.worker)]
    waiting = [
        asyncio.create_task(ask(http, scene.url, body_of(60, stream=n % 2 == 1))) for n in range(8)
    ]
    await until(lambda: all_run(scene), 5, "all slots are taken")
    ids = [await submit(http, scene.url, body_of(4, user=BALLAST)) for _ in range(30)]
    full = await used(scene) - OVER_BYTES
    await scene.redis.config_set("maxmemory", full)
    refused = await ask(http, scene.url, body_of(2))
    assert (refused.what, 1 <= int(refused.retry_after) <= 5) == (REFUSED, True)
    assert counts(await asyncio.gather(*waiting)) == {"right": 8}
    ended = [await scene.until_state(one, "done") for one in ids]
    assert {(one.takes, one.attempts, one.crashes) for one in ended} == {(1, 0, 0)}
    await served(http, scene.url)
    assert await used(scene) < 0.85 * full
    await scene.redis.config_set("maxmemory", 0)
    assert [errors(one.events()) for one in watched] == [[], []]
    await assert_identities(scene)


async def all_run(scene: Scene) -> bool:
    return bool((await scene.status())["running"] == 8)


async def used(scene: Scene) -> int:
    return int((await scene.redis.info("memory"))["used_memory"])
