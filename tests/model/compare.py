"""Differences of two normal forms, told by path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ROUGH = ("clock", "ready:", "tags:", "starts:", "request:", "usage:", "limits:", "dead")
"""Keys with numbers that come from sums of costs: equal within 1e-6, relative."""

ROUNDED = ("clock.booked:", "refused:")
"""Booked times: rounded up to ms from such sums, so one may differ by 1."""


def differences(expected: Any, stored: Any, path: str = "") -> Iterator[str]:
    """One line for each leaf that differs: path, expected, stored."""
    if expected == stored:
        return
    if isinstance(expected, dict) and isinstance(stored, dict):
        for name in sorted(expected.keys() | stored.keys(), key=str):
            inner = f"{path}.{name}" if path else str(name)
            if name not in stored:
                yield f"{inner}: expected {expected[name]!r}, missing"
            elif name not in expected:
                yield f"{inner}: not expected, stored {stored[name]!r}"
            else:
                yield from differences(expected[name], stored[name], inner)
    elif not _same(expected, stored, path):
        yield f"{path}: expected {expected!r}, stored {stored!r}"


def _same(expected: Any, stored: Any, path: str) -> bool:
    numbers = isinstance(expected, int | float) and isinstance(stored, int | float)
    if numbers and path.startswith(ROUNDED):
        return bool(abs(expected - stored) <= 1)
    if numbers and path.startswith(ROUGH):
        return bool(abs(expected - stored) <= 1e-6 * max(1.0, abs(expected), abs(stored)))
    return bool(expected == stored)
