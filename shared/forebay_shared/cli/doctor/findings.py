"""What a check says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How bad it is; the highest of a report is the report's."""

    OK = 0
    WARNING = 1
    """It works, and will hurt: in a failure, under load, or later."""
    FAILURE = 2
    """Requests are lost, or not served, or may be at any moment."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact: what is so, why it matters, what to do. `about`: a server or pool, for people."""

    level: Level
    what: str
    why: str = ""
    todo: str = ""
    check: str = ""
    about: str = ""

    def row(self) -> dict[str, str]:
        """For programs."""
        return {
            "check": self.check,
            "about": self.about,
            "level": self.level.name.lower(),
            "what": self.what,
            "why": self.why,
            "todo": self.todo,
        }


def ok(what: str) -> Finding:
    return Finding(Level.OK, what)


def warning(what: str, why: str, todo: str) -> Finding:
    return Finding(Level.WARNING, what, why, todo)


def failure(what: str, why: str, todo: str) -> Finding:
    return Finding(Level.FAILURE, what, why, todo)


def worst(findings: Iterable[Finding]) -> Level:
    """The level of a whole report."""
    return max((one.level for one in findings), default=Level.OK)
