"""Sweeping: deadlines, due retries, expired leases, bells. Offered by every worker.

Nobody is appointed to sweep, so nobody's death stops it: all offer, and the first in a tick does
it. But a thousand idle workers that offer each tick would keep Redis busy with refusals. So each
comes less often the more others come: its stride grows by a fifth with each offer that was not
needed and halves with each that was. Then some five offers a tick are made, however many workers
there are, and one that is alone offers each tick.
"""

from __future__ import annotations

import asyncio
import random

from forebay_shared.calls import Duties, Swept
from forebay_shared.metrics import Metrics
from forebay_worker.link import Link
from forebay_worker.rules import Rules

GROWTH = 1.2
MOST_TICKS = 10.0
"""After the sudden death of nearly all workers the rest comes within so many ticks."""


class Stride:
    """Ticks between this worker's offers, learned from whether they were needed."""

    def __init__(self) -> None:
        self._mean_ticks = 1.0

    def next_ticks(self) -> float:
        """Ticks to wait now; spread, so that workers started together come apart."""
        return self._mean_ticks * random.uniform(0.8, 1.2)

    def note(self, needed: bool) -> None:
        """An offer was answered."""
        factor = 0.5 if needed else GROWTH
        self._mean_ticks = min(MOST_TICKS, max(1.0, self._mean_ticks * factor))


class Sweeper:
    """Offers sweeps; whoever comes first does it, the others are told so."""

    def __init__(self, duties: Duties, rules: Rules, link: Link, metrics: Metrics) -> None:
        self._duties = duties
        self._rules = rules
        self._link = link
        self._metrics = metrics
        self._stride = Stride()

    async def once(self) -> None:
        """Wait for the next offer's time, and sweep until nothing more is due."""
        await asyncio.sleep(self._rules.settings.sweep_ms / 1000 * self._stride.next_ticks())
        await self.sweep()

    async def sweep(self) -> None:
        """Offer one sweep; where it was full, go on at once."""
        swept = await self._link.ask("sweep", self._duties.sweep)
        self._stride.note(swept is not None)
        while swept is not None:
            self._count(swept)
            if not swept.again:
                return
            swept = await self._link.ask("sweep", lambda: self._duties.sweep(forced=True))

    def _count(self, swept: Swept) -> None:
        for what in ("expired", "retried", "reclaimed", "repaired"):
            if count := getattr(swept, what):
                self._metrics.count("forebay_swept_total", count, what=what)
