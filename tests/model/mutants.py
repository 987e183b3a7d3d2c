"""Faults to sow into the library: each must turn a test red. See `mutate.py`."""

from __future__ import annotations

MUTANTS: dict[str, list[tuple[str, str]]] = {}
"""Name → replacements (text that stands exactly once in the library, what takes its place)."""


def mutated(text: str, name: str) -> str:
    """The library with the named fault; the library itself where no name is given."""
    for old, new in MUTANTS[name] if name else []:
        assert text.count(old) == 1, f"{name}: {old!r} must stand once, not {text.count(old)} times"
        text = text.replace(old, new)
    return text
