"""Server-sent events, as far as OpenAI-compatible engines use them: data only."""

from __future__ import annotations


class EventReader:
    """Cuts a byte stream into the data of its events.

    Takes reads split anywhere, line ends `\\n`, `\\r\\n` and `\\r`, comments, and data over
    several lines (joined with `\\n`). Other fields are skipped. Each byte is searched once and
    copied a fixed number of times, so an event of a megabyte costs no more than its size.
    """

    __slots__ = ("_after_cr", "_data", "_tail")

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, read: bytes) -> list[bytes]:
        """The data of every event that this read completes, oldest first."""
        if self._after_cr or b"\r" in read:
            read = self._unify(read)
        if b"\n" not in read:
            if read:
                self._tail.append(read)
            return []
        if self._tail:
            self._tail.append(read)
            read = b"".join(self._tail)
            self._tail.clear()
        return self._events(read)

    def _events(self, read: bytes) -> list[bytes]:
        lines = read.split(b"\n")
        tail = lines.pop()
        if tail:
            self._tail.append(tail)
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if not line:
                event = data[0] if len(data) == 1 else b"\n".join(data)
                if event:  # by the standard an event without data is none
                    events.append(event)
                data.clear()
            elif line.startswith(b"data: "):
                data.append(line[6:])
            elif line.startswith(b"data:"):
                data.append(line[5:])
            elif line == b"data":
                data.append(b"")
        return events

    def _unify(self, read: bytes) -> bytes:
        """Turn `\\r\\n` and `\\r` into `\\n`, also where a read ended between the two."""
        if self._after_cr and read.startswith(b"\n"):
            read = read[1:]
            self._after_cr = False
        if read:
            self._after_cr = read.endswith(b"\r")
        return read.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
