"""Redis is gone at the very moment in which results are to be written, for longer than a lease."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from tests.faults.clients import ask, body_of, counts, submit
from tests.faults.scene import Scene, Watched, playing
from tests.flow.identities import assert_identities
from tests.flow.processes import until
from tests.flow.system import QUICK

pytestmark = pytest.mark.anyio
AWAY_S = 2.0
"""The engine ends after some 0.6 s of it."""
ENDED_S = 0.6
"""So long after their begin the short ones have ended in the engine."""


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


async def test_a_worker_that_is_stopped_while_redis_is_away_still_writes_its_results(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """SIGTERM while results wait for Redis, which comes back within the grace: they are written
    before the worker leaves, and nothing runs twice."""
    async with playing(tmp_path, work=("--grace", "10")) as scene:
        ids = [await submit(http, scene.url, body_of(20)) for _ in range(8)]
        await until(lambda: all_run(scene), 5, "all run")
        scene.server.kill()
        leaving = asyncio.create_task(asyncio.to_thread(scene.worker.stop, 15))
        await asyncio.sleep(ENDED_S)
        scene.server.restart()
        assert await leaving == 0
        shown = [await scene.show(one) for one in ids]
        assert {(one.state, one.takes, one.crashes) for one in shown} == {("done", 1, 0)}
        await assert_identities(scene)


async def all_run(scene: Scene) -> bool:
    return bool((await scene.status())["running"] == 8)
