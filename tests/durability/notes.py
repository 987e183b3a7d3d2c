"""What was acknowledged, and when: a line each, written by the processes under load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple

Kind = Literal["admitted", "ended"]


class Note(NamedTuple):
    """An answer that Redis gave. `at_s`: CLOCK_MONOTONIC, the same in all processes."""

    kind: Kind
    at_s: float
    request_id: str


class Notes:
    """Appends notes to a file; what is written outlives this process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def add(self, kind: Kind, ids: Iterable[str]) -> None:
        now_s = monotonic()
        self._file.write("".join(f"{kind} {now_s:.6f} {one}\n" for one in ids))
        self._file.flush()


def read(paths: Iterable[Path]) -> Iterator[Note]:
    """All notes of all files."""
    for path in paths:
        for line in path.read_text().split("\n")[:-1]:
            kind, at_s, request_id = line.split()
            yield Note("ended" if kind == "ended" else "admitted", float(at_s), request_id)
