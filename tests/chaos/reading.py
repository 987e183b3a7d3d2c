"""What a client has of one stream, over however many connections it came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from tests.chaos.history import History, short_hash
from tests.chaos.sse import Message, messages

Json = Mapping[str, Any]


def text_of(answer: Json) -> str:
    """The text of an answer's or a chunk's first choice; empty where it has none."""
    choices = answer.get("choices") or [{}]
    choice = choices[0]
    part = choice.get("message") or choice.get("delta") or {}
    return str(part.get("content") or choice.get("text") or "")


class Reading:
    """The events that came, their number, and how the stream ended."""

    def __init__(self, history: History, op: int, request_id: str) -> None:
        self.request_id = request_id
        self.have = 0
        self.state = ""
        """How the request ended, as far as the stream has said."""
        self.failed = False
        """An error event came."""
        self._history = history
        self._op = op
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._parts)

    async def read(self, answer: aiohttp.ClientResponse, most: int | None = None) -> None:
        """Take the stream's events, `most` of them, until it ends.

        Raises aiohttp.ClientError where the connection breaks.
        """
        left = most
        async for message in messages(answer):
            self._take(message)
            if left is not None:
                left -= 1
            if left == 0:
                return

    def _take(self, message: Message) -> None:
        if message.data == "[DONE]":
            self.state = "done"
        elif message.event == "end":
            self.state = str(json.loads(message.data)["state"])
        elif "error" in (value := json.loads(message.data)):
            self.failed = True
            self._history.write("error", op=self._op, code=value["error"].get("code"))
        else:
            self._chunk(message, value)

    def _chunk(self, message: Message, value: Json) -> None:
        self.have = int(message.id) if message.id else self.have + 1
        self._parts.append(text_of(value))
        self._history.write("chunk", op=self._op, n=self.have, hash=short_hash(message.data))
