"""What was found: counts in the words of Jepsen's total-queue, figures, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

SHOWN = 5


@dataclass(slots=True)
class Verdict:
    """A run is good where nothing is lost, unexpected, duplicated or otherwise wrong."""

    seed: int = 0
    attempted: int = 0
    """Operations that a client began."""
    acknowledged: int = 0
    """Requests that the queue said it has."""
    lost: list[str] = field(default_factory=list)
    """Acknowledged, and without a terminal record."""
    unexpected: list[str] = field(default_factory=list)
    """Recorded, and asked for by nobody."""
    duplicated: list[str] = field(default_factory=list)
    """Done more than once for one operation."""
    recovered: int = 0
    """Recorded though the client had no sign of it."""
    figures: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    """Other violations: what is wrong → where."""

    @property
    def good(self) -> bool:
        return not (self.problems or self.lost or self.unexpected or self.duplicated)

    def wrong(self, what: str, where: object = "") -> None:
        """Note a violation."""
        self.problems.setdefault(what, []).append(str(where))

    def as_json(self) -> dict[str, Any]:
        return {"good": self.good} | asdict(self)

    def text(self) -> str:
        """The report for people."""
        rows = [
            f"seed          {self.seed}",
            f"attempted     {self.attempted}",
            f"acknowledged  {self.acknowledged}",
            f"lost          {len(self.lost)}",
            f"unexpected    {len(self.unexpected)}",
            f"duplicated    {len(self.duplicated)}",
            f"recovered     {self.recovered}",
        ]
        rows += [f"{name}: {_plain(value)}" for name, value in self.figures.items()]
        jepsen = {"lost": self.lost, "unexpected": self.unexpected, "duplicated": self.duplicated}
        for name, found in (jepsen | self.problems).items():
            rows += [f"BAD {name}: {one}" for one in found[:SHOWN]]
            if len(found) > SHOWN:
                rows.append(f"BAD {name}: … and {len(found) - SHOWN} more")
        return "\n".join([*rows, "good" if self.good else "BAD"])


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items()) or "none"
    return str(value)


def spread(values: list[float]) -> dict[str, float]:
    """Count, median, 99th percentile (nearest rank) and maximum."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "p50": ordered[ceil(0.5 * len(ordered)) - 1],
        "p99": ordered[ceil(0.99 * len(ordered)) - 1],
        "max": ordered[-1],
    }


def counted(values: Iterable[object]) -> dict[str, int]:
    """How often each value is there, in order of the values."""
    counts = Counter(map(str, values))
    return {name: counts[name] for name in sorted(counts)}
