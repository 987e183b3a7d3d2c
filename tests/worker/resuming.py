"""What the tests of resume share: an engine that breaks off, requests, and what is read of them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from tests.worker.desk import CHAT, Desk

from forebay_shared.records import Envelope, Result
from forebay_worker.engine import Chunk, EngineBroken, EngineCall, EngineEvent, Traits
from forebay_worker.engine.sim import SimEngine

COMPLETIONS = "/v1/completions"
Events = list[dict[str, Any]]


class CutEngine(SimEngine):
    """A simulated engine whose next call breaks off after `cut` chunks; it remembers its calls.

    It waits until the client can have read them, if they can be read at all.
    """

    def __init__(self, desk: Desk, cut: int | None = None, traits: Traits | None = None) -> None:
        super().__init__("zero")
        self.desk = desk
        self.cut = cut
        self.asked: list[EngineCall] = []
        self._able = traits

    def traits(self, model: str) -> Traits:
        return super().traits(model) if self._able is None else self._able

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
        self.asked.append(call)
        cut, self.cut = self.cut, None
        passed: list[EngineEvent] = []
        async for event in super().generate(call):
            if len(passed) == cut:
                break
            yield event
            passed.append(event)
        if cut is not None:
            await self.desk.until_chunks(call.request_id, readable(passed))
            raise EngineBroken("cut")


def readable(passed: list[EngineEvent]) -> int:
    """How many of these chunks reach the client: not a role alone, not an end before its usage."""
    last = json.loads(passed[-1].data) if isinstance(passed[-1], Chunk) else {}
    if not last["choices"]:
        return len(passed) - 1
    (choice,) = last["choices"]
    return len(passed) - bool(choice["finish_reason"] or choice.get("delta", {}).get("role"))


def chat(**fields: Any) -> Envelope:
    messages = [{"role": "user", "content": "line 96"}]  # answered with characters of many bytes
    return envelope(CHAT, {"messages": messages, **fields})


def completion(**fields: Any) -> Envelope:
    return envelope(COMPLETIONS, {"prompt": "line 53", **fields})


def envelope(path: str, fields: dict[str, Any]) -> Envelope:
    body = {"model": "sim", "stream": True, "ignore_eos": True, "max_tokens": 24, **fields}
    given = {name: value for name, value in body.items() if value is not None}
    raw = json.dumps(given, ensure_ascii=False).encode()
    return Envelope(path, "sim", raw, stream=body["stream"], progress=not body["stream"])


async def read(desk: Desk, asked: Envelope) -> tuple[Events, Result]:
    """The events of a stream to its end, without the time that each has, and its result."""
    (request_id,) = await desk.admit([asked])
    result = await desk.result(request_id)
    events = [json.loads(event) for _, event in (await desk.seen(request_id)).chunks]
    assert len({(event.pop("id"), event.pop("created")) for event in events}) <= 1
    return events, result


def text_of(events: Events) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(one["text"] if "text" in one else one["delta"]["content"] for one in choices)


def without_empty(events: Events) -> Events:
    """Without chunks of a character that was not whole yet: these may come twice."""
    texts = [event for event in events if event["choices"]]
    idle = [e for e in texts if not text_of([e]) and not e["choices"][0]["finish_reason"]]
    return [event for event in events if event not in idle]


async def answer(desk: Desk, asked: Envelope) -> tuple[dict[str, Any], Result]:
    """The whole answer of a request that does not stream, without its time, and its result."""
    (request_id,) = await desk.admit([asked])
    result = await desk.result(request_id)
    body = json.loads(result.body)
    del body["id"], body["created"]
    return body, result


async def start(desk: Desk, engine: CutEngine) -> CutEngine:
    await desk.worker(engine, recheck_s=0.01)
    return engine
