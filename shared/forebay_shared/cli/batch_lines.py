"""Reading a file in OpenAI's batch format; every line is checked before the first is sent."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_shared.cli.terminal import Problem

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
)
SHOWN_ERRORS = 20


class BadBatch(Problem):
    """The file cannot be used; the message names lines and what is wrong with them."""

    exit_code = 2


class BadLine(ValueError):
    """One line cannot be used."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request of a batch. `name` is the same in every run over the same file, and unique."""

    custom_id: str
    path: str
    body: bytes
    name: str


def read_batch(path: Path, model: str | None) -> list[Line]:
    """The requests of the file; `model` stands in where a body names none. Raises BadBatch."""
    raw = path.read_bytes()
    digest = hashlib.sha256(raw).digest()
    lines: list[Line] = []
    errors: list[str] = []
    first_at: dict[str, int] = {}
    for number, text in enumerate(raw.splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = _line(text, model, digest)
            if (earlier := first_at.setdefault(line.custom_id, number)) != number:
                raise BadLine(f"custom_id {line.custom_id!r} is already that of line {earlier}")
        except BadLine as error:
            errors.append(f"line {number}: {error}")
            continue
        lines.append(line)
    _require_good(path, lines, errors)
    return lines


def _require_good(path: Path, lines: list[Line], errors: list[str]) -> None:
    if errors:
        shown = errors[:SHOWN_ERRORS]
        if len(errors) > SHOWN_ERRORS:
            shown.append(f"and {len(errors) - SHOWN_ERRORS:,} more")
        rows = "\n  ".join(shown)
        raise BadBatch(f"{path} has errors, nothing was sent; mend these lines:\n  {rows}")
    if not lines:
        raise BadBatch(f"{path} has no requests; write one JSON object a line")


def _line(text: bytes, model: str | None, digest: bytes) -> Line:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadLine(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise BadLine("not a JSON object")
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLine("custom_id must be a string that is not empty")
    if value.get("method", "POST") != "POST":
        raise BadLine("method must be POST")
    if value.get("url") not in PATHS:
        raise BadLine(f"url must be one of {', '.join(PATHS)}")
    body = _body(value.get("body"), model)
    return Line(custom_id, value["url"], body, _name(digest, custom_id, body))


def _body(value: Any, model: str | None) -> bytes:
    if not isinstance(value, dict):
        raise BadLine("body must be a JSON object")
    if value.get("stream"):
        raise BadLine("body.stream must not be set: a batch collects whole answers")
    if not value.get("model"):
        if model is None:
            raise BadLine("body.model is missing; write it there or give --model")
        value = value | {"model": model}
    if not isinstance(value["model"], str):
        raise BadLine("body.model must be a string")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _name(digest: bytes, custom_id: str, body: bytes) -> str:
    """Depends on the whole file, so that a changed batch is a new one."""
    parts = [digest, custom_id.encode(), body]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[
        :32
    ]
