"""Answers of a replica as a client takes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import aiohttp
from tests.chaos.reading import text_of

STATES = {"deadline_exceeded": "expired", "cancelled": "cancelled", "crash_loop": "dead"}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a replica."""

    status: int
    request_id: str
    body: Any
    repeat: bool
    """Whether a client that can repeat does."""

    @property
    def code(self) -> str:
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return str(error.get("code")) if isinstance(error, dict) else ""

    @property
    def state(self) -> str:
        """How the request ended, by the answer's status and code."""
        return "done" if self.status == 200 else STATES.get(self.code, "failed")


def ended(shown: Any) -> dict[str, Any]:
    """State and text of a request as `GET /v1/requests/{id}` shows it."""
    result = shown["result"] or {"reason": None}  # it may not have ended
    text = text_of(result["body"]) if shown["state"] == "done" else None
    return {"state": shown["state"], "text": text, "reason": result["reason"]}


async def read_reply(answer: aiohttp.ClientResponse) -> Reply:
    raw = await answer.read()
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    away = answer.status in (429, 502, 503) or (answer.status == 404 and b"model_not_found" in raw)
    repeat = away and answer.headers.get("x-should-retry") != "false"
    return Reply(answer.status, answer.headers.get("x-request-id", ""), body, repeat)
