"""The two files that a batch leaves: results, and errors of the requests that failed.

Both are in OpenAI's batch output format and are flushed row by row. The id of a row is
`batch_req_<name of the line>_<try>`, so a later run over the same batch knows what is done, and
gives each request that failed a new try.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Self

from forebay_shared.cli.batch_lines import BadBatch, Line

_ROW_ID = re.compile(r"batch_req_([0-9a-f]{32})_(\d{1,6})")
_ROW_HEAD = b'{"id": "batch_req_'


def row_id(line: Line, try_number: int) -> str:
    """The id of a row, and the Idempotency-Key of its request."""
    return f"batch_req_{line.name}_{try_number}"


class BatchFiles:
    """Results and errors of one batch. A context manager.

    Raises BadBatch, having written nothing, where a file is not this batch's or is being written.
    """

    def __init__(self, results: Path, errors: Path, lines: Sequence[Line]) -> None:
        self._errors_path = errors
        self._names = {line.name for line in lines}
        self._results = _open_locked(results)
        self._errors: IO[bytes] | None = None
        try:
            done = list(self._rows(results))
            failed = list(self._rows(errors))
        except BadBatch:
            self._results.close()
            raise
        # A last row that was cut off goes: the next begins on a line of its own.
        self._results.truncate(sum(len(row) for _, _, row in done))
        self._done = {name for name, _, _ in done}
        self._failed = {name: (number, row) for name, number, row in failed}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._errors is not None:
            self._errors.close()
        self._settle_errors()
        self._results.close()  # last: the lock goes with it

    def is_done(self, line: Line) -> bool:
        """Whether an earlier run has its result."""
        return line.name in self._done

    def next_try(self, line: Line) -> int:
        """The number of the try to make: one more than that of the last error, else 0."""
        failed = self._failed.get(line.name)
        return failed[0] + 1 if failed else 0

    def write_result(self, line: Line, try_number: int, response: dict[str, Any]) -> None:
        """A request that ended well."""
        _append(self._results, _row(line, try_number, response, None))
        self._done.add(line.name)

    def write_error(
        self,
        line: Line,
        try_number: int,
        response: dict[str, Any] | None,
        error: dict[str, Any] | None,
    ) -> None:
        """A request that failed: with an HTTP answer, or without one and an error that says why."""
        if self._errors is None:
            self._errors = self._errors_path.open("ab")
        row = _row(line, try_number, response, error)
        _append(self._errors, row)
        self._failed[line.name] = (try_number, row)

    def _rows(self, path: Path) -> Iterator[tuple[str, int, bytes]]:
        """Name, try and text of each row; a last one that was cut off is left out."""
        if not path.exists():
            return
        for row in path.read_bytes().splitlines(keepends=True):
            if row.endswith(b"\n"):
                yield (*self._named(path, row), row)
            elif not row.startswith(_ROW_HEAD[: len(row)]):
                raise _foreign(path)

    def _named(self, path: Path, row: bytes) -> tuple[str, int]:
        try:
            found = _ROW_ID.fullmatch(json.loads(row)["id"])
        except (ValueError, KeyError, TypeError):
            found = None
        if found is None or found[1] not in self._names:
            raise _foreign(path)
        return found[1], int(found[2])

    def _settle_errors(self) -> None:
        """Leaves one row for each request that still fails, and no file where none does."""
        rows = [row for name, (_, row) in self._failed.items() if name not in self._done]
        if not rows:
            self._errors_path.unlink(missing_ok=True)
            return
        part = self._errors_path.with_name(self._errors_path.name + ".part")
        part.write_bytes(b"".join(rows))
        os.replace(part, self._errors_path)


def _append(file: IO[bytes], row: bytes) -> None:
    file.write(row)
    file.flush()


def _row(
    line: Line,
    try_number: int,
    response: dict[str, Any] | None,
    error: dict[str, Any] | None,
) -> bytes:
    value = {
        "id": row_id(line, try_number),
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _foreign(path: Path) -> BadBatch:
    return BadBatch(
        f"{path} belongs to another batch, or the input has changed since it was written; "
        "move it away or name another file with --output"
    )


def _open_locked(path: Path) -> IO[bytes]:
    """Opens the file for more rows; no second run may do the same."""
    try:
        file = path.open("ab")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadBatch(
            f"{path} is being written by another run of this batch; wait for it"
        ) from None
    except OSError as error:
        raise BadBatch(
            f"{path} cannot be written ({error.strerror}); name another file with --output"
        ) from None
    return file
