"""The witness beside a real server: a command that works for long stays slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis
from tests.servers import start_server
from tests.soak.stalls import SlowLog, Witness, explained

pytestmark = pytest.mark.anyio

WORK = "for _ = 1, tonumber(ARGV[1]) do end"
LOOPS = 3_000_000
"""Some 25 ms of a processor; five times as fast it would still be slow."""
TIMES = 5


async def test_a_slow_script_stays_slow(tmp_path: Path) -> None:
    """Most of five: the host may take four fifths of the time of one."""
    with start_server(tmp_path) as server:
        witness = await Witness.beside(server.pid)
        if not witness.stands:
            pytest.skip("this user may set no real-time priority")
        redis = Redis.from_url(server.url)
        slow_log = SlowLog(redis)
        try:
            await slow_log.open()
            for _ in range(TIMES):
                await redis.eval(WORK, 0, LOOPS)
            await slow_log.close()
        finally:
            stalls = await witness.stalls()
            await redis.aclose()
    found = [one for one in slow_log.found if one.name == "EVAL"]
    assert len(found) == TIMES
    assert len(explained(found, stalls)) < TIMES / 2, (found, stalls)
