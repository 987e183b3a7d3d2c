"""What a process calls its connections, so that CLIENT LIST tells which library it calls."""

from __future__ import annotations

import re
from collections.abc import Iterable

from forebay_shared.library import LIBRARY_NAME

_OURS = re.compile(
    r"(?:forebay-producer|forebay-inbox|worker|bells|control)-([0-9a-f]{16})(?:-(forebay_[0-9a-f]+))?"
)


def client_name(role: str, process_id: str) -> str:
    """A name for a process's ordinary connections; ends in its library's name."""
    return f"{role}-{process_id}-{LIBRARY_NAME}"


def libraries_of(names: Iterable[str]) -> dict[str, str]:
    """Process id → library of each process among these connections; empty where none tells."""
    found: dict[str, str] = {}
    for name in names:
        if match := _OURS.fullmatch(name):
            found[match[1]] = match[2] or found.get(match[1], "")
    return found
