"""Redis is gone at the very moment in which results are to be written, for longer than a lease."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from tests.faults.clients import ask, body_of, counts, submit
from tests.faults.scene import Scene, Watched
from tests.flow.identities import assert_identities
from tests.flow.processes import until
from tests.flow.system import QUICK

pytestmark = pytest.mark.anyio
AWAY_S = 2.0
"""The engine ends after some 0.6 s of it."""


async def test_results_that_could_not_be_written_are_written_later(
    scene: Scene, http: aiohttp.ClientSession
) -> None:
    """The worker keeps them: one terminal record each soon after, and the engine ran once."""
    assert QUICK.lease_ms < AWAY_S * 1000
    waiting = [
        asyncio.create_task(ask(http, scene.url, body_of(50, stream=n % 2 == 1))) for n in range(4)
    ]
    ids = [await submit(http, scene.url, body_of(50)) for _ in range(4)]
    await until(lambda: all_run(scene), 5, "all run")
    watched = Watched(scene.worker)
    scene.server.kill()
    await asyncio.sleep(AWAY_S)
    scene.server.restart()
    assert counts(await asyncio.gather(*waiting)) == {"right": 4}
    ended = [await scene.until_state(one, "done", 3) for one in ids]
    assert {(one.takes, one.attempts, one.crashes) for one in ended} == {(1, 0, 0)}
    assert [one["event"] for one in watched.events()] == ["redis away", "redis answers"]
    await assert_identities(scene)


async def all_run(scene: Scene) -> bool:
    return bool((await scene.status())["running"] == 8)
