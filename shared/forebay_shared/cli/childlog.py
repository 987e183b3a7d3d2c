"""What the children of `forebay up` say, on our stderr: a line each, with who says it."""

from __future__ import annotations

import json
import sys
from collections import deque

HELD_LINES = 1_000
_OWN = ("time", "level", "event", "trace")


class ChildLog:
    """Writes the children's lines, or holds them back while something else has the terminal."""

    def __init__(self) -> None:
        self._held: deque[str] | None = None

    def write(self, name: str, line: bytes) -> None:
        """One line as `name | line`; log events in words instead of JSON."""
        self._show(f"{name} | {readable(line)}\n")

    def note(self, text: str) -> None:
        """A line of our own about a child."""
        self._show(f"{text}\n")

    def _show(self, line: str) -> None:
        if self._held is None:
            sys.stderr.write(line)
            sys.stderr.flush()
        else:
            self._held.append(line)

    def hold(self) -> None:
        """Keep lines, the last HELD_LINES of them, until `release`."""
        self._held = deque(maxlen=HELD_LINES)

    def release(self) -> None:
        """Write what was held. May be called when nothing is."""
        for line in self._held or ():
            sys.stderr.write(line)
        sys.stderr.flush()
        self._held = None


def readable(line: bytes) -> str:
    """`17:58:03Z serving address=…` for a log event; any other line as it is."""
    text = line.decode(errors="replace")
    try:
        event = json.loads(text)
        words = [f"{str(event['time'])[11:]}Z", str(event["event"])]
        level = event["level"]
    except (ValueError, KeyError, TypeError):
        return text
    if level != "info":
        words.insert(1, str(level).upper())
    words += [f"{name}={_plain(value)}" for name, value in event.items() if name not in _OWN]
    return "\n".join([" ".join(words), *str(event.get("trace", "")).splitlines()])


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
