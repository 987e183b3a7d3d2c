"""How much work this worker may take now: its slots, its runs, its engine, its drain."""

from __future__ import annotations

from forebay_worker.capacity import Capacity
from forebay_worker.drain import Drain
from forebay_worker.pulse import Pulse
from forebay_worker.rules import Rules
from forebay_worker.runs import Runs


class Gate:
    """What the take loop asks before each take."""

    def __init__(
        self, worker: str, rules: Rules, runs: Runs, capacity: Capacity, pulse: Pulse, drain: Drain
    ) -> None:
        self.worker = worker
        self._rules = rules
        self._runs = runs
        self._capacity = capacity
        self._pulse = pulse
        self._drain = drain

    @property
    def classes(self) -> list[str]:
        """The classes that this worker serves."""
        return self._rules.classes

    @property
    def slots(self) -> int:
        """All slots, free or not."""
        return self._capacity.limit

    @property
    def held(self) -> int:
        """Requests whose leases this worker holds."""
        return len(self._runs)

    @property
    def free(self) -> int:
        """Slots for new work now; none while it drains or its engine does not serve."""
        if self._drain.started.is_set() or not self._pulse.serving:
            return 0
        return max(0, self._capacity.limit - self._runs.active)
