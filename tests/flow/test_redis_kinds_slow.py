"""Under load: primaries die and hang, slots move, replicas stay away. Nothing accepted is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import aiohttp
import pytest
import redis
from tests.clusters import Cluster
from tests.flow.failing import KEY, SERVING_WITHIN_S, failing
from tests.flow.identities import assert_identities
from tests.flow.load import Load, body_of
from tests.flow.processes import until
from tests.flow.system import QUICK, System, running
from tests.sentinels import Watched

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(120)]

REPLICATED = QUICK.model_copy(update={"wait_replicas": 1, "wait_ms": 500})
ENGINES = ("sim", "sim")


@pytest.mark.parametrize("how", ["kill", "pause"])
@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
async def test_nothing_replicated_is_lost_with_its_primary(
    tmp_path: Path, kind: str, how: str
) -> None:
    """Served again within 5 s of the new primary, without restart; all accepted ones are done."""
    one = failing(kind, tmp_path, replicas=2)
    async with running(tmp_path, ENGINES, settings=REPLICATED, server=one.below) as system:
        await system.know("sim")
        load = Load(system)
        async with load.running():
            await load.until_accepted(20)
            one.lose(how)
            await one.until_replaced()
            took_s = await load.until_answered()
            await load.until_accepted(20)
        print(f"\n{kind}, {how}: served again after {took_s:.1f} s; {dict(load.statuses)}")
        assert took_s <= SERVING_WITHIN_S
        await load.until_all_done()
        await assert_identities(system)
        assert all(child.code is None for child in (*system.serving, *system.working))


async def test_waiter_whose_record_vanished_is_told_to_repeat(tmp_path: Path) -> None:
    """Admitted and not replicated, then the primary died: 503 with Retry-After."""
    one = failing("sentinel", tmp_path)
    assert isinstance(one.below, Watched)
    (replica,) = one.below.replicas
    async with running(tmp_path, producers=1, server=one.below) as system:
        with redis.Redis.from_url(one.below.primary.url) as primary:
            replica.pause()
            primary.client_kill_filter(_type="replica")  # what it has not read is lost with it
        async with aiohttp.ClientSession() as client:
            url = f"{system.producers[0]}/v1/chat/completions"
            waiting = asyncio.create_task(client.post(url, json=body_of("lost")))

            async def waits() -> bool:
                return bool((await system.status())["queued"] == 1)

            await until(waits, 5, "it waits")
            one.lose()
            replica.resume()
            async with await asyncio.wait_for(waiting, 30) as answer:
                assert answer.status == 503, await answer.text()
                assert int(answer.headers["retry-after"]) >= 1
                assert "repeat" in (await answer.json())["error"]["message"]
        assert (await assert_identities(system))["accepted"] == 0


async def test_slot_moves_under_load(tmp_path: Path) -> None:
    """To another primary and back, several times: 503 meanwhile, nothing lost, counts hold."""
    cluster = Cluster(tmp_path / "redis")
    home, away = cluster.owner(KEY), next(n for n in cluster.nodes if n is not cluster.owner(KEY))
    async with running(tmp_path, ENGINES, server=cluster) as system:
        await system.know("sim")
        load = Load(system)
        async with load.running(16):
            for to in (away, home, away):
                await load.until_accepted(30)
                await asyncio.to_thread(cluster.move_slot, KEY, to)
                took_s = await load.until_answered()
                print(f"\nmoved: answered after {took_s:.1f} s; {dict(load.statuses)}")
                assert took_s <= SERVING_WITHIN_S
            await load.until_accepted(30)
        await load.until_all_done()
        await assert_identities(system)
        assert cluster.owner(KEY) is away


async def _held(system: System) -> int:
    return sum(int(worker["held"]) for worker in (await system.status())["workers"])


async def test_replicas_away_refuse_admits_and_keep_ends(tmp_path: Path) -> None:
    """With wait_replicas: 503 in time, nothing left behind; ends are held until confirmed."""
    below = Watched(tmp_path / "redis", sentinels=0)
    settings = REPLICATED.model_copy(update={"wait_ms": 300})
    primary, (replica,) = below.servers[0], below.servers[1:]
    below.url = primary.url
    async with running(tmp_path, ["sim"], producers=1, settings=settings, server=below) as system:
        await system.know("sim")
        url = f"{system.producers[0]}/v1/chat/completions"
        async with aiohttp.ClientSession() as client:
            long = client.post(
                url, json=body_of("long", tokens=60), headers={"Prefer": "respond-async"}
            )
            async with long as answer:
                path = answer.headers["Location"]
            replica.pause()
            began_s = monotonic()
            async with client.post(url, json=body_of("refused")) as answer:
                assert answer.status == 503, await answer.text()
                assert int(answer.headers["retry-after"]) >= 1
            assert 0.3 <= monotonic() - began_s < 2

            await asyncio.sleep(2 * QUICK.lease_ms / 1000)  # long enough to lose what is not kept
            assert await _held(system) >= 1, "its worker has let go of an end"
            replica.resume()

            async def confirmed() -> bool:
                return await _held(system) == 0

            await until(confirmed, 10, "the ends are confirmed")
            async with client.get(f"{system.producers[0]}{path}") as answer:
                assert (await answer.json())["state"] == "done"
        ledger = await assert_identities(system)
        # The refused one may have run before it was taken back.
        assert (ledger["accepted"], ledger["done"] + ledger.get("cancelled", 0)) == (2, 2)
