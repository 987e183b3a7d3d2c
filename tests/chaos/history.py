"""What happened, one JSON object a line: the only thing the checker gets beside the final state.

Every line has `at_s` (seconds since the start, monotonic) and `type`:

    run       seed, settings and length of the run; beside: worker → engine process
    expected  asked, text: what the engine said to a body before any fault
    invoke    op: a client begins an operation: kind, path, body, key, timeout_ms
    refused   op: the queue said that it stored nothing: status, code
    trouble   op: no usable answer: the connection broke, or the queue was away
    accepted  op, id: the queue has the request
    chunk     op, n, hash: the stream's event number n
    break     op, n: the client read on elsewhere, having n events
    error     op, code: an error event inside the stream
    seen      op, id, state: a state that the queue told
    ok        op, id, state, text: the client knows how it ended
    fail      op: surely not stored
    info      op: whether it was stored is not known
    life      name, pid, skew_s, library: a process began a life: its clock's error, its code
    clock     pid, skew_s: the clock of a running process jumped
    worker    id, pid: the name under which a worker's life holds leases
    fault     kind, name, target, from_s, until_s: what the nemesis did
    stalled   from_s, until_s: the harness itself, and with it all links, stood still
    held      what a killed worker held, by the server's clock
    granted   id, wait_ms, crashes, held, delivered, reasons: such a request's next grant, and
              what it had before: crashes, neighbours, chunks, and what it was seen to wait for
    unready   name, why: a process that did not serve in time
    died      a process that nobody had told to end
    exit      a process's exit code after SIGTERM
    logged    name, line: an error in a process's log
    counted   life, stale, lost: a worker's own counters
    read      id, through: the text that a replica assembled at the end
    drained   whether the queue was empty in time
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any

Event = dict[str, Any]


def short_hash(text: str | bytes) -> str:
    """Tells two chunks apart."""
    raw = text.encode() if isinstance(text, str) else text
    return blake2b(raw, digest_size=6).hexdigest()


class History:
    """Appends events to a file, in the order of their happening."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._began_s = monotonic()

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return monotonic() - self._began_s

    def write(self, kind: str, /, **fields: Any) -> None:
        row = {"at_s": round(self.now_s, 4), "type": kind, **fields}
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")

    def close(self) -> None:
        self._file.close()


def read_history(path: Path) -> Iterator[Event]:
    """The events of a file."""
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)
