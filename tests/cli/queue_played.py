"""Plays admission and results for the tests of batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.fake import Asked, FakeProducer, Reply, error, shown

POST, GET = "POST /v1/chat/completions", "GET /v1/requests/*"
URL = "/v1/requests/"
BODY = {"model": "sim", "messages": [{"role": "user", "content": "Hé"}]}
ANSWER = {"choices": [{"message": {"content": "yes"}}]}
RESULTS = {
    "done": {"status": 200, "reason": None, "body": ANSWER},
    "failed": {"status": 422, "reason": None, "body": error("No such thing.")},
    "expired": {"status": 504, "reason": "deadline", "body": error("Too late.", "deadline")},
}


class Queue:
    """The same Idempotency-Key finds the same request; ids count from 0.

    `states`: how a request stands, if it is not done at once.
    """

    def __init__(self, fake: FakeProducer) -> None:
        self.ids: dict[str, str] = {}
        self.states: dict[str, str] = {}
        fake.scripts[POST] = self.admit
        fake.scripts[GET] = self.show

    def admit(self, asked: Asked) -> Reply:
        request_id = self.ids.setdefault(asked.headers["idempotency-key"], nth_id(len(self.ids)))
        return 202, {"id": request_id, "object": "request", "state": "queued"}

    def show(self, asked: Asked) -> Reply:
        request_id = asked.path.removeprefix(URL)
        state = self.states.get(request_id, "done")
        return 200, shown(state, id=request_id, result=RESULTS.get(state))


def nth_id(number: int) -> str:
    """The id of the request that was admitted after so many others."""
    return f"default.{number:026}"


def row(custom_id: str = "a", **other: Any) -> str:
    """One line of a batch; a field set to None is left out."""
    value = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": BODY}
    return json.dumps({name: one for name, one in (value | other).items() if one is not None})


def written(tmp_path: Path, *lines: str) -> Path:
    """A batch file of these lines."""
    path = tmp_path / "batch.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    """What stands in a file of results or errors."""
    return [json.loads(line) for line in path.read_text().splitlines()]
