"""What a simulated engine remembers of its calls."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["done", "aborted", "failed"]


@dataclass(slots=True)
class CallRecord:
    """One call: a request that ran twice has two."""

    id: str
    """The caller's request id, the X-Request-Id over HTTP."""
    started_s: float = field(default_factory=time.time)
    """Wall clock, as `ended_s`."""
    ended_s: float | None = None
    outcome: Outcome | None = None
    """`aborted`: the caller closed before the end; None while it runs."""
    output_tokens: int = 0

    def end(self, outcome: Outcome) -> None:
        """Set how it ended; the first word counts."""
        if self.outcome is None:
            self.outcome = outcome
            self.ended_s = time.time()


@dataclass(slots=True)
class Totals:
    """Counters since the engine started."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """Choices by finish reason."""
