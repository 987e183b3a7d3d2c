"""What workers tell of themselves: their names, and writes refused because a lease was lost."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

import aiohttp
from redis.exceptions import RedisError
from tests.chaos.history import History
from tests.chaos.processes import Place
from tests.chaos.stage import Stage

EVERY_S = 1.0
_COUNTERS = {
    "stale": re.compile(r"^forebay_stale_writes_total(?:\{.*\})? (\S+)$", re.MULTILINE),
    "lost": re.compile(r"^forebay_lost_leases_total(?:\{.*\})? (\S+)$", re.MULTILINE),
}


class Counters:
    """Reads the workers' metrics again and again, since a killed one takes its counts along."""

    def __init__(self, stage: Stage, history: History) -> None:
        self._stage = stage
        self._history = history
        self._last: dict[str, dict[str, int]] = {}
        self._known: set[str] = set()

    async def watch(self) -> None:
        while True:
            await self.note()
            await asyncio.sleep(EVERY_S)

    async def note(self) -> None:
        """Write down what has changed since the last time."""
        await asyncio.gather(*[self._note(one) for one in self._stage.role("worker")])
        with suppress(RedisError):  # it may be away just now
            for worker in (await self._stage.operator.status())["workers"]:
                if worker["id"] not in self._known:
                    self._known.add(worker["id"])
                    pid = worker["about"].get("pid")
                    self._history.write("worker", id=worker["id"], pid=int(pid or 0))

    async def _note(self, worker: Place) -> None:
        life, url = f"{worker.name}/{worker.lives}", worker.probe.replace("readyz", "metrics")
        try:
            async with self._stage.http.get(url, timeout=aiohttp.ClientTimeout(1)) as answer:
                page = await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return  # killed or stopped just now
        counts = {
            name: int(sum(float(found) for found in pattern.findall(page)))
            for name, pattern in _COUNTERS.items()
        }
        if self._last.get(life) != counts:
            self._last[life] = counts
            self._history.write("counted", life=life, **counts)
