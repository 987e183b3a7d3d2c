"""Redis reads its data back for seconds, and answers LOADING meanwhile."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from redis.exceptions import BusyLoadingError, RedisError
from tests.faults.clients import REFUSED, ask, body_of, served, submit
from tests.faults.scene import Scene, Watched, errors
from tests.flow.processes import until

pytestmark = pytest.mark.anyio
KEYS, KEY_DELAY_US = 200, 4_000
"""0.8 seconds; the server answers in between every 1 KiB that it reads."""
SLOWLY = (
    "--key-load-delay", str(KEY_DELAY_US), "--loading-process-events-interval-bytes", "1024",
)  # fmt: skip


async def test_while_redis_loads_requests_are_refused_and_nobody_dies(
    scene: Scene, http: aiohttp.ClientSession
) -> None:
    """503 with Retry-After, not ready; the worker waits; both serve once the data is there, and
    what was accepted before is answered."""
    await scene.redis.execute_command("DEBUG", "POPULATE", KEYS, "ballast", 64)
    await scene.redis.execute_command("BGREWRITEAOF")
    await until(lambda: rewritten(scene), 5, "the data is in a file that is read slowly")
    accepted = await submit(http, scene.url, body_of(100))
    watched = [Watched(scene.producer), Watched(scene.worker)]
    scene.server.kill()
    loading = asyncio.create_task(asyncio.to_thread(scene.server.restart, SLOWLY))
    await until(lambda: loads(scene), 5, "it loads")
    refused = await ask(http, scene.url, body_of(2))
    assert (refused.what, 1 <= int(refused.retry_after) <= 5) == (REFUSED, True)
    async with http.get(f"{scene.url}/healthz") as answer:
        assert answer.status == 200
    assert not loading.done()
    await loading
    await served(http, scene.url)
    assert (await scene.until_state(accepted, "done")).takes == 1
    for one in watched:
        assert errors(one.events()) == []
        assert len(one.events()) < 30, json.dumps(one.events()[-5:])
    await scene.redis.delete(*[f"ballast:{number}" for number in range(KEYS)])


async def rewritten(scene: Scene) -> bool:
    info = await scene.redis.info("persistence")
    return not (info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])


async def loads(scene: Scene) -> bool:
    try:
        await scene.redis.get("ballast:0")
    except BusyLoadingError:
        return True
    except RedisError:
        return False  # it is not there yet
    return False
