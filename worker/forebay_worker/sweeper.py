"""Sweeping: deadlines, due retries, expired leases, bells. Offered by every worker each tick."""

from __future__ import annotations

import asyncio
import random

from forebay_shared.calls import Duties, Swept
from forebay_shared.metrics import Metrics
from forebay_worker.link import Link
from forebay_worker.rules import Rules


class Sweeper:
    """Offers a sweep each tick; whoever comes first does it, the others are told so."""

    def __init__(self, duties: Duties, rules: Rules, link: Link, metrics: Metrics) -> None:
        self._duties = duties
        self._rules = rules
        self._link = link
        self._metrics = metrics

    async def once(self) -> None:
        """Wait a tick, and sweep until nothing more is due."""
        # Spread, so that workers started together do not all come at the same moment.
        await asyncio.sleep(self._rules.settings.sweep_ms / 1000 * random.uniform(0.9, 1.1))
        await self.sweep()

    async def sweep(self) -> None:
        """Offer one sweep; where it was full, go on at once."""
        swept = await self._link.ask("sweep", self._duties.sweep)
        while swept is not None:
            self._count(swept)
            if not swept.again:
                return
            swept = await self._link.ask("sweep", lambda: self._duties.sweep(forced=True))

    def _count(self, swept: Swept) -> None:
        for what in ("expired", "retried", "reclaimed", "repaired"):
            if count := getattr(swept, what):
                self._metrics.count("forebay_swept_total", count, what=what)
