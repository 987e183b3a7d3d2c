"""What a case lost, in words and for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Outcome:
    """Counts of one case; `problems`: identities that do not hold, contradictions."""

    name: str
    promises: bool
    kills: int = 0
    admitted: int = 0
    ended: int = 0
    lost: int = 0
    ended_again: int = 0
    """Ends that were acknowledged and lost: their requests ran again."""
    losing_kills: int = 0
    oldest_lost_s: float = 0.0
    """The longest time between an acknowledgement that was lost and the kill."""
    took_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether it keeps what this setting promises."""
        return not self.problems and not (self.promises and (self.lost or self.ended_again))

    def as_json(self) -> dict[str, Any]:
        names = [name for name in self.__slots__ if name != "took_s"]
        return {name: getattr(self, name) for name in names} | {"good": self.good}


HEAD = f"{'setting':<22}{'kills':>6}{'admitted':>10}{'lost':>8}{'ended':>9}{'run again':>11}  loses"


def line(one: Outcome) -> str:
    """A row of the table."""
    counts = f"{one.name:<22}{one.kills:>6}{one.admitted:>10,}{one.lost:>8,}{one.ended:>9,}"
    return f"{counts}{one.ended_again:>11,}  {_loses(one)}"


def _loses(one: Outcome) -> str:
    told = "nothing"
    if one.lost or one.ended_again:
        what = "all " if one.lost == one.admitted else ""
        told = f"{what}in {one.losing_kills} kills, up to {one.oldest_lost_s:.2f} s before the kill"
    return "; ".join([told, *one.problems])
