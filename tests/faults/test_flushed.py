"""Somebody empties Redis, or deletes a queue's stream, in the middle of the work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import aiohttp
import pytest
from tests.faults.clients import REFUSED, ask, body_of, counts, served, submit
from tests.faults.scene import SLOTS, Scene, Watched, errors, playing
from tests.flow.identities import assert_identities
from tests.flow.processes import until

from forebay_shared.settings import PoolSettings

pytestmark = pytest.mark.anyio
FEW = 4
LONG = 2_000
"""Tokens: half a minute."""
QUIET_S = 1.0


async def test_after_a_flush_waiters_are_told_and_workers_serve_again(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """All slots taken, more waiting: each client hears within 3 s, with 503 and Retry-After or one
    error event. The engine's calls are dropped when their leases are renewed next, and new requests
    served; meanwhile logs and processor stay quiet."""
    settings = PoolSettings(lease_ms=6_000, renew_ms=2_000)
    async with playing(tmp_path, settings=settings, work=("--slots", str(FEW))) as scene:
        bodies = [body_of(LONG, stream=n == 0) for n in range(FEW + 2)]
        waiting = [asyncio.create_task(ask(http, scene.url, body)) for body in bodies]
        await until(lambda: all_run(scene, FEW), 5, "all slots are taken")
        await until(lambda: streamed(scene, http), 5, "a client has seen some of its stream")
        watched = [Watched(scene.producer), Watched(scene.worker)]
        began_s = monotonic()
        await scene.redis.flushall()
        said = await asyncio.gather(*waiting)
        assert monotonic() - began_s < 3
        assert counts(said) == {REFUSED: FEW + 1, "200 error event": 1}
        await served(http, scene.url, settings.renew_ms / 1000 + 1)
        for _ in range(FEW):
            await submit(http, scene.url, body_of(LONG))
        await until(lambda: all_run(scene, FEW), settings.renew_ms / 1000 + 1, "all slots are free")
        await asyncio.sleep(QUIET_S)
        took_s = monotonic() - began_s
        for one in watched:
            assert errors(one.events()) == []
            assert len(one.events()) <= FEW + 2 + took_s, one.events()
            assert one.cpu_s() < 0.25 * took_s


async def test_a_deleted_stream_costs_what_it_held_and_no_more(
    scene: Scene, http: aiohttp.ClientSession
) -> None:
    """What waited in it ends as lost, loudly; what runs ends well; new requests are served within a
    second, and nobody spins."""
    running = [asyncio.create_task(ask(http, scene.url, body_of(60))) for _ in range(SLOTS)]
    await until(lambda: all_run(scene, SLOTS), 5, "all slots are taken")
    ids = [await submit(http, scene.url, body_of(4)) for _ in range(3)]
    watched = [Watched(scene.producer), Watched(scene.worker)]
    keys = [key async for key in scene.redis.scan_iter(match="*queue:*")]
    assert await scene.redis.delete(*keys) == 1
    began_s = monotonic()
    assert counts(await asyncio.gather(*running)) == {"right": SLOTS}
    await served(http, scene.url, 1.0)
    for request_id in ids:
        await scene.until_state(request_id, "dead", 10)
    took_s = monotonic() - began_s
    for one in watched:
        assert errors(one.events()) == []
        assert len(one.events()) <= 5 + took_s
        assert one.cpu_s() < 0.5 * took_s
    await assert_identities(scene)


async def all_run(scene: Scene, count: int) -> bool:
    return bool((await scene.status())["running"] == count)


async def streamed(scene: Scene, http: aiohttp.ClientSession) -> bool:
    async with http.get(f"{scene.url}/metrics") as page:
        return 'first_event_seconds_count{class="normal"} 1.0' in await page.text()
