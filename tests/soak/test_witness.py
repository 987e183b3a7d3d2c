"""The witness beside a real server: work does not excuse itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.servers import start_server
from tests.soak.stalls import SlowLog, Witness, met

pytestmark = pytest.mark.anyio

LOOP = "for _ = 1, 1500000 do end"
WALK = "table.sort(redis.call('LRANGE', KEYS[1], 0, -1))"
"""Goes through more memory than caches next to the processor hold."""
LENGTH = 12_000
TIMES = 15


@pytest.mark.parametrize("script", [LOOP, WALK], ids=["loop", "walk"])
async def test_work_is_no_stall(tmp_path: Path, script: str) -> None:
    """Of many the witness takes away less than a tenth; the host may stall the others."""
    with start_server(tmp_path) as server:
        redis = Redis.from_url(server.url)
        await redis.rpush("list", *[f"{number * 7919 % LENGTH:060d}" for number in range(LENGTH)])
        witness = await Witness.beside(server.pid)
        slow_log = SlowLog(redis)
        try:
            if not witness.stands:
                pytest.skip("this user may set no real-time priority")
            await slow_log.open()
            for _ in range(TIMES):
                await redis.eval(script, 1, "list")
            await slow_log.close()
        finally:
            stalls = await witness.stalls()
            await redis.aclose()
    found = [one for one in slow_log.found if one.name == "EVAL"]
    assert len(found) == TIMES
    shares = [met(one, stalls) / one.took_s for one in found]
    assert sorted(shares)[TIMES // 4] < 0.1, (found, shares)
