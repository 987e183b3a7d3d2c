"""A call is carried out and its reply never comes, once for each step of a request's life."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from tests.faults.clients import ask, body_of
from tests.faults.scene import Scene
from tests.flow.identities import assert_identities
from tests.worker.desk import Desk
from tests.worker.proxy import Proxy
from tests.worker.scripted import Held, ScriptedEngine, answer, answers

pytestmark = pytest.mark.anyio
PRODUCER, WORKER = 0, 1


@pytest.mark.parametrize(
    ("way", "step"),
    [
        (PRODUCER, "admit"),
        (PRODUCER, "reply"),
        (WORKER, "take"),
        (WORKER, "finish"),
        (WORKER, "emit"),
        (WORKER, "renew"),
    ],
)
async def test_a_lost_reply_doubles_nothing(
    scene: Scene, http: aiohttp.ClientSession, way: int, step: str
) -> None:
    """The clients get one right answer each, and each request was taken once."""
    before = await assert_identities(scene)
    scene.ways[way].lose(f"forebay_{step}_")  # finish_take begins with finish
    said = await asyncio.gather(
        *[ask(http, scene.url, body_of(40, stream=stream)) for stream in (True, False)]
    )
    assert [one.what for one in said] == ["right", "right"]
    assert scene.ways[way].lost.is_set()
    shown = [await scene.show(one.request_id) for one in said]
    assert {(one.takes, one.attempts, one.crashes) for one in shown} == {(1, 0, 0)}
    after = await assert_identities(scene)
    assert [after[name] - before.get(name, 0) for name in ("accepted", "done")] == [2, 2]


async def test_a_release_whose_reply_is_lost_gives_back_once(redis_url: str) -> None:
    """A worker that leaves asks again until it knows: nothing is blamed, and it runs elsewhere."""
    desk = Desk(redis_url)
    await desk.open()
    proxy = Proxy(desk.url)
    await proxy.open()
    engine = ScriptedEngine(Held())
    worker, task = await desk.worker(engine, redis=proxy.url, grace_s=0.0)
    request_id = await desk.submit()
    await engine.called.wait()
    proxy.lose("forebay_release_")
    worker.drain.request("test")
    assert await task == 0
    assert proxy.lost.is_set()
    shown = await desk.show(request_id)
    assert (shown.state, shown.takes, shown.attempts, shown.crashes) == ("queued", 1, 0, 0)
    await desk.worker(ScriptedEngine(answers))
    assert (await desk.result(request_id)).body == answer()
    await desk.close()
    await proxy.close()
