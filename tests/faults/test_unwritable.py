"""Redis answers but takes no writes: it could not save, or it is a replica for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp
import pytest
from redis.exceptions import RedisError
from tests.faults.clients import REFUSED, ask, body_of, served, submit
from tests.faults.scene import SNAPSHOT, Scene, Watched, errors
from tests.flow.identities import assert_identities
from tests.flow.processes import until

pytestmark = pytest.mark.anyio
Fault = Callable[[Scene], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def misconf(scene: Scene) -> AsyncIterator[None]:
    """A snapshot failed: a folder stands where its file should be."""
    taken = scene.folder / SNAPSHOT
    taken.mkdir()
    await scene.redis.config_set("save", "3600 100000")
    await scene.redis.bgsave()
    try:
        yield
    finally:
        taken.rmdir()
        await scene.redis.config_set("save", "")


@asynccontextmanager
async def replica(scene: Scene) -> AsyncIterator[None]:
    """As in a failover that picked the wrong one; its primary is never reached."""
    await scene.redis.replicaof("127.0.0.1", 1)
    try:
        yield
    finally:
        await scene.redis.replicaof("NO", "ONE")


@pytest.mark.parametrize("fault", [misconf, replica])
async def test_while_redis_takes_no_writes_nothing_is_blamed(
    scene: Scene, http: aiohttp.ClientSession, fault: Fault
) -> None:
    """New requests are refused with 503; what runs ends as done when writes are taken again, at its
    first attempt."""
    ids = [await submit(http, scene.url, body_of(60)) for _ in range(3)]
    waiting = [
        asyncio.create_task(ask(http, scene.url, body_of(60, stream=n == 1))) for n in range(2)
    ]
    await until(lambda: all_run(scene, 5), 5, "they run")
    watched = [Watched(scene.producer), Watched(scene.worker)]
    async with fault(scene):
        await until(lambda: refuses_writes(scene), 5, "writes are refused")
        assert (await ask(http, scene.url, body_of(2))).what == REFUSED
    await served(http, scene.url)
    assert [one.what for one in await asyncio.gather(*waiting)] == ["right"] * 2
    ended = [await scene.until_state(one, "done") for one in ids]
    assert {(one.takes, one.attempts, one.crashes) for one in ended} == {(1, 0, 0)}
    assert [errors(one.events()) for one in watched] == [[], []]
    await assert_identities(scene)


async def all_run(scene: Scene, count: int) -> bool:
    return bool((await scene.status())["running"] == count)


async def refuses_writes(scene: Scene) -> bool:
    try:
        await scene.redis.delete("nothing")
    except RedisError:
        return True
    return False
