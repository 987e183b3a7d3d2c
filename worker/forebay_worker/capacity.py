"""How many requests the engine is given at once.

Told by `--slots`, or learned: upwards while all slots are used and none waits in the engine, down
when more than one waits or the engine had to preempt. One more than the engine's own slots is
enough to keep it full, so that is the most where the engine says how many it has.
"""

from __future__ import annotations

from forebay_worker.engine import Load

FIRST = 8
MOST = 1_024
GROWTH = 1.05
SHRINK = 0.95


class Capacity:
    """`limit`: slots now. `fixed`: never more, and no learning; None to learn."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._preemptions: int | None = None
        self.limit = fixed or FIRST

    def polled(self, load: Load, peak: int) -> None:
        """Learn from the engine's load; up to `peak` of our requests ran since the last time."""
        preempted = self._preemptions is not None and load.preemptions > self._preemptions
        self._preemptions = load.preemptions
        if self._fixed is None and (load.waiting > 1 or preempted):
            self.limit = max(1, int(self.limit * SHRINK))
        elif load.waiting == 0 and peak >= self.limit:
            self.limit = max(self.limit + 1, int(self.limit * GROWTH))
        self.limit = min(self.limit, self._most(load))

    def refused(self, active: int) -> None:
        """The engine refused a request while it had `active` others of ours: take less."""
        self.limit = max(1, min(active, int(self.limit * SHRINK)))

    def _most(self, load: Load) -> int:
        if self._fixed is not None:
            return self._fixed
        return MOST if load.slots is None else load.slots + 1
