"""Redis stops, in order or killed, and comes back on the same data."""

from __future__ import annotations

import asyncio
import random

import aiohttp
import pytest
from tests.faults.clients import REFUSED, ask, body_of, counts, crowd, served, submit
from tests.faults.scene import Scene, Watched, errors
from tests.flow.identities import assert_identities

pytestmark = pytest.mark.anyio
BACK_S = 5.0


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_what_was_accepted_before_a_restart_is_answered_after_it(
    scene: Scene, http: aiohttp.ClientSession, how: str
) -> None:
    """Waiting and running, whole and streamed, their clients connected all the time: each gets
    its answer, no request runs twice, and new ones are served within 5 s."""
    watched = [Watched(scene.producer), Watched(scene.worker)]
    waiting = [
        asyncio.create_task(ask(http, scene.url, body_of(40, stream=n % 2 == 1))) for n in range(20)
    ]
    ids = await asyncio.gather(*[submit(http, scene.url, body_of(40)) for _ in range(4)])
    if how == "killed":
        scene.server.kill()
        assert (await ask(http, scene.url, body_of(2))).what == REFUSED
    scene.server.restart()
    took_s = await served(http, scene.url, BACK_S)
    print(f"served again after {took_s:.2f} s")
    assert counts(await asyncio.gather(*waiting)) == {"right": 20}
    ended = [await scene.until_state(one, "done") for one in ids]
    assert {(one.takes, one.crashes, one.attempts) for one in ended} == {(1, 0, 0)}
    assert [errors(one.events()) for one in watched] == [[], []]
    await assert_identities(scene)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_twenty_restarts_at_random_times(scene: Scene, http: aiohttp.ClientSession) -> None:
    """Under load: after each the service is back within 5 s, and nothing is lost or done twice."""
    dice = random.Random(20)
    backs_s = []
    async with crowd(scene, http, 8, 20) as said:
        for _ in range(20):
            await asyncio.sleep(dice.uniform(0.1, 1.5))
            if dice.random() < 0.5:
                scene.server.kill()
                await asyncio.sleep(dice.uniform(0, 1))
            await asyncio.to_thread(scene.server.restart)
            backs_s.append(await served(http, scene.url, BACK_S))
    print(f"served again after at most {max(backs_s):.2f} s; {dict(counts(said))}")
    assert set(counts(said)) <= {"right", REFUSED}
    ledger = await assert_identities(scene)
    assert ledger["done"] + ledger.get("cancelled", 0) == ledger["accepted"]
