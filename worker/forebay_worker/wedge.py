"""A wedged engine: it takes connections and answers nothing, so its calls would last for ever.

An engine that dies breaks its connections, and its calls end at once. One that hangs keeps them
open: its requests would wait for their deadlines, and their leases would be renewed all the time.
So when its health has failed without a break for 30 s, or two leases if that is longer, the calls
that it has not answered in that time are closed. Their requests are released as crashed and run
elsewhere; those of which a client has seen some end as interrupted.

A stream that still flows goes on, whatever health says: an engine that drains may refuse to be
asked. While the worker itself drains, its grace is the limit.
"""

from __future__ import annotations

import asyncio
import logging

from forebay_shared.logs import event
from forebay_worker.drain import Drain
from forebay_worker.pulse import Pulse
from forebay_worker.rules import Rules
from forebay_worker.runs import Runs, Stop

LEASES = 2
"""What is aborted crashed: that must not come sooner than for a worker that is gone."""


class Wedge:
    """Finds out that the engine is wedged; never before `least_s`."""

    def __init__(
        self, pulse: Pulse, runs: Runs, rules: Rules, drain: Drain, least_s: float
    ) -> None:
        self._pulse = pulse
        self._runs = runs
        self._rules = rules
        self._drain = drain
        self._least_s = least_s

    def look(self) -> None:
        """Close the calls of an engine that has hung for too long. Called while it is down."""
        limit_s = max(self._least_s, LEASES * self._rules.settings.lease_ms / 1000)
        if self._pulse.failing_s < limit_s or self._drain.started.is_set():
            return
        silent_since_s = asyncio.get_running_loop().time() - limit_s
        runs = [run for run in self._runs.running() if run.heard_s <= silent_since_s]
        for run in runs:
            run.stop(Stop.WEDGED)
        if runs:
            event("engine wedged", logging.ERROR, closed=len(runs), silent_s=round(limit_s))
