"""After much work the server holds what it held before it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from tests.faults.clients import ask, body_of, counts
from tests.faults.scene import Scene, playing
from tests.flow.identities import assert_identities, keys_without_ttl
from tests.flow.processes import until
from tests.flow.system import QUICK

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
COUNT, AT_ONCE = 400, 32
SPARE = 4
"""Connections that two processes may open later; they are bounded, whatever comes."""
SHORT = QUICK.model_copy(update={"result_ttl_ms": 4_000, "tombstone_ms": 1_000})


async def test_after_much_work_keys_connections_and_memory_are_as_before(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """Half of the requests stream. Once the results' time is over no queue, no reader and no record
    is left; memory is within 5 % of what it was."""
    work = ("--sim-profile", "zero", "--slots", str(AT_ONCE))
    async with playing(tmp_path, settings=SHORT, work=work) as scene:
        await do(scene, http, AT_ONCE)  # what is made when first needed is there now
        before = await held(scene)
        for _ in range(COUNT // AT_ONCE):
            await do(scene, http, AT_ONCE)
        after = await held(scene)
        print(f"before {before}, after {after}")
        assert after[0] <= before[0] + SPARE
        assert after[1] <= 1.05 * before[1]
        await assert_identities(scene)


async def do(scene: Scene, http: aiohttp.ClientSession, count: int) -> None:
    said = await asyncio.gather(
        *[ask(http, scene.url, body_of(8, stream=n % 2 == 1)) for n in range(count)]
    )
    assert counts(list(said)) == {"right": count}


async def held(scene: Scene) -> tuple[int, int]:
    """Connections and bytes of memory, once all that has a time is over."""

    async def clean() -> bool:
        kinds = ("request", "result", "output", "queue")
        for kind in kinds:
            async for _ in scene.redis.scan_iter(match=f"*:{kind}:*", count=1_000):
                return False
        return not await keys_without_ttl(scene)

    await until(clean, 20, "results and records are gone", every_s=0.1)
    clients = await scene.redis.client_list()
    return len(clients), int((await scene.redis.info("memory"))["used_memory"])
