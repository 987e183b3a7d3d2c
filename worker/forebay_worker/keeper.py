"""Keeping leases: every lease is renewed, from its grant until its end is confirmed.

Redis alone says whether a lease is lost. While it does not answer, what runs goes on: perhaps it
is still ours, and if not, nothing that we write will be accepted.
"""

from __future__ import annotations

import asyncio

from forebay_shared.calls import Leases
from forebay_shared.calls.library import ITEMS_PER_CALL
from forebay_shared.logs import event
from forebay_shared.metrics import Metrics
from forebay_worker.link import Link
from forebay_worker.rules import Rules
from forebay_worker.runs import Run, Runs, Stop


class Keeper:
    """Renews all leases every `renew_ms`; a run whose lease is lost is stopped."""

    def __init__(
        self,
        worker: str,
        leases: Leases,
        rules: Rules,
        runs: Runs,
        link: Link,
        metrics: Metrics,
    ) -> None:
        self._worker = worker
        self._leases = leases
        self._rules = rules
        self._runs = runs
        self._link = link
        self._metrics = metrics
        self._renewed_s = float("-inf")

    async def once(self) -> None:
        """Wait until the next renewal is due, and renew."""
        loop = asyncio.get_running_loop()
        due_s = self._renewed_s + self._rules.settings.renew_ms / 1000
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        started_s = loop.time()
        await self.renew()
        self._renewed_s = started_s

    async def renew(self) -> None:
        """Renew every lease now, in calls of ≤ 100 made at the same time."""
        held = self._runs.held()
        slices = [held[at : at + ITEMS_PER_CALL] for at in range(0, len(held), ITEMS_PER_CALL)]
        await asyncio.gather(*map(self._renew, slices))

    async def _renew(self, runs: list[Run]) -> None:
        held = [run.held for run in runs]
        words = await self._link.ask("renew", lambda: self._leases.renew(self._worker, held))
        for run, word in zip(runs, words, strict=True):
            # An ended run is left: its end may have been confirmed while this call was under way.
            if word == "lost" and not run.ended:
                self._metrics.count("forebay_lost_leases_total")
                event("lease lost", id=run.grant.request_id, take=run.grant.take)
                run.stop(Stop.LOST)
