"""One chat question: asked, and its answer brought to the terminal as it comes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from forebay_shared.cli.api import Producer
from forebay_shared.cli.terminal import Problem

CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `model` None: the first that is known; `class_name` None: the usual one."""

    text: str
    model: str | None = None
    class_name: str | None = None
    max_tokens: int | None = None

    def headers(self) -> dict[str, str]:
        return {"X-Priority": self.class_name} if self.class_name else {}

    def body(self, model: str, stream: bool) -> bytes:
        """The chat request; of the two names for the limit the one that every server knows."""
        value: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": self.text}],
        }
        if self.max_tokens is not None:
            value["max_tokens"] = self.max_tokens
        if stream:
            value["stream"] = True
        return json.dumps(value, ensure_ascii=False).encode()


async def model_for(producer: Producer, named: str | None) -> str:
    """The model to ask. Raises Problem where none is named and none is known."""
    if named:
        return named
    known = await producer.models()
    if not known:
        raise Problem("no worker has registered a model yet; start one, or name one with --model")
    return known[0]


async def stream_answer(
    producer: Producer, question: Question, write: Callable[[str], None]
) -> str:
    """Ask and write the answer piece by piece; all of it. Raises Problem where it breaks off."""
    model = await model_for(producer, question.model)
    written: list[str] = []
    events = producer.events(CHAT, question.body(model, True), question.headers())
    async for piece in _texts(events):
        written.append(piece)
        write(piece)
    return "".join(written)


async def _texts(events: AsyncIterator[bytes]) -> AsyncIterator[str]:
    async for data in events:
        if data == b"[DONE]":
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            raise Problem("the answer is not made of JSON; does --url name a producer?") from None
        if "error" in chunk:
            raise Problem(f"the answer broke off: {chunk['error']['message']}")
        for choice in chunk.get("choices", []):
            if piece := choice.get("delta", {}).get("content"):
                yield piece
    raise Problem("the answer broke off without an end; submit it again")


async def whole_answer(producer: Producer, question: Question) -> Any:
    """Ask and wait for the whole answer as the JSON that the engine gave."""
    model = await model_for(producer, question.model)
    answer = await producer.call("POST", CHAT, question.body(model, False), question.headers())
    return answer.require().json()


async def leave_request(producer: Producer, question: Question) -> Any:
    """Submit without waiting for the answer: the request as `show` has it."""
    model = await model_for(producer, question.model)
    headers = question.headers() | {"Prefer": "respond-async"}
    answer = await producer.call("POST", CHAT, question.body(model, False), headers)
    return answer.record("id")
