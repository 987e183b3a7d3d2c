"""A worker and its engine are told to stop at the same time, and the engine is gone first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.faults.clients import ask, body_of, counts
from tests.faults.scene import Scene, playing
from tests.flow.engines import sim_server
from tests.flow.identities import assert_identities
from tests.flow.processes import until
from tests.vllm.rig import EngineServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
HELD = 4


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineServer]:
    one = sim_server(tmp_path)
    one.start()
    one.wait_ready()
    yield one
    one.kill()


@pytest.mark.parametrize("how", ["in order", "killed"])
async def test_what_an_engine_drops_while_its_worker_is_stopped_blames_nobody(
    tmp_path: Path, engine: EngineServer, http: aiohttp.ClientSession, how: str
) -> None:
    """The engine ends its texts with `abort`, or is gone: they run elsewhere, no attempt and no
    crash is counted, and clients get their answers."""
    async with playing(tmp_path, work=("--engine", engine.url, "--grace", "5")) as scene:
        waiting = [
            asyncio.create_task(ask(http, scene.url, body_of(150, stream=n % 2 == 1)))
            for n in range(HELD)
        ]
        await until(lambda: all_run(scene), 5, "all run")
        end = engine.kill if how == "killed" else engine.stop
        ending = asyncio.create_task(asyncio.to_thread(end))
        assert await asyncio.to_thread(scene.worker.stop, 8) == 0
        await ending
        await scene.add_worker("sim", "--redis", scene.ways[1].url)
        said = await asyncio.gather(*waiting)
        assert counts(said) == {"right": HELD}
        shown = [await scene.show(one.request_id) for one in said]
        assert {(one.takes, one.attempts, one.crashes) for one in shown} == {(2, 0, 0)}
        await assert_identities(scene)


async def all_run(scene: Scene) -> bool:
    return bool((await scene.status())["running"] == HELD)
