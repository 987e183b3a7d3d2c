"""Connections that a router has forgotten: open at both ends, and nothing passes any more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import aiohttp
import pytest
from tests.faults.clients import ask, body_of, counts, served, submit
from tests.faults.scene import Scene, Watched, errors, playing
from tests.flow.identities import assert_identities
from tests.flow.processes import until

from forebay_shared.connect import BLOCK_MARGIN_S
from forebay_shared.settings import PoolSettings
from forebay_worker.bells import BLOCK_S

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(120)]
RUNS = 4


async def test_forgotten_connections_are_given_up_and_made_anew(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """Blocked reads end within their block + 5 s, other calls within 5 s. With the default leases
    nothing is blamed; waiting clients get their answers, and the service is back."""
    async with playing(tmp_path, settings=PoolSettings()) as scene:
        waiting = [
            asyncio.create_task(ask(http, scene.url, body_of(600, stream=n % 2 == 1)))
            for n in range(RUNS)
        ]
        await until(lambda: all_run(scene), 5, "they run")
        watched = [Watched(scene.producer), Watched(scene.worker)]
        began_s = monotonic()
        assert [way.swallow() > 0 for way in scene.ways] == [True, True]
        said = await asyncio.gather(*waiting)
        answered_s = monotonic() - began_s
        await served(http, scene.url, BLOCK_S + BLOCK_MARGIN_S + 5)
        print(f"answered after {answered_s:.1f} s, served after {monotonic() - began_s:.1f} s")
        assert counts(said) == {"right": RUNS}
        shown = [await scene.show(one.request_id) for one in said]
        assert {(one.takes, one.attempts, one.crashes) for one in shown} == {(1, 0, 0)}
        assert [errors(one.events()) for one in watched] == [[], []]
        await assert_identities(scene)


async def test_an_idle_worker_hears_of_work_again(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """It waits for bells on a connection that is no more, for at most its block + 5 s."""
    async with playing(tmp_path, settings=PoolSettings()) as scene:
        await served(http, scene.url)
        began_s = monotonic()
        assert scene.ways[1].swallow() > 0
        request_id = await submit(http, scene.url, body_of(2))
        await scene.until_state(request_id, "done", BLOCK_S + BLOCK_MARGIN_S + 1)
        print(f"served after {monotonic() - began_s:.1f} s")


async def all_run(scene: Scene) -> bool:
    return bool((await scene.status())["running"] == RUNS)
