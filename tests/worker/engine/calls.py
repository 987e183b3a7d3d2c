"""Calls on a simulated engine, and its answers taken apart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from forebay_worker.engine import Answer, Chunk, Engine, EngineCall
from forebay_worker.engine.profile import Profile
from forebay_worker.engine.sim import SimEngine

PROMPT = [{"role": "user", "content": "Why is the sky blue? Answer in verse."}]


@asynccontextmanager
async def sim(
    profile: Profile | str = "zero",
    models: Sequence[str] = ("sim",),
    seed: int = 0,
    speed: float = 20.0,
) -> AsyncIterator[SimEngine]:
    """A started engine, twenty times as fast as the real thing."""
    engine = SimEngine(profile, models, seed, speed)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def chat(request_id: str = "r-1", **fields: Any) -> EngineCall:
    return post("/v1/chat/completions", request_id, **{"messages": PROMPT, **fields})


def completion(request_id: str = "r-1", **fields: Any) -> EngineCall:
    return post("/v1/completions", request_id, **{"prompt": "Once upon a time", **fields})


def post(path: str, request_id: str = "r-1", **fields: Any) -> EngineCall:
    body = json.dumps({"model": "sim", **fields}).encode()
    return EngineCall(request_id, path, body, bool(fields.get("stream")))


async def answer(engine: Engine, call: EngineCall) -> Any:
    """The JSON of a call that does not stream."""
    events = [event async for event in engine.generate(call)]
    assert len(events) == 1
    assert isinstance(events[0], Answer)
    assert (events[0].status, events[0].content_type) == (200, "application/json")
    return json.loads(events[0].body)


async def chunks(engine: Engine, call: EngineCall) -> list[Any]:
    """The JSON of each chunk of a stream."""
    events = [event async for event in engine.generate(call)]
    assert all(isinstance(event, Chunk) for event in events)
    return [json.loads(event.data) for event in events if isinstance(event, Chunk)]


@dataclass
class Said:
    """One choice of an answer, whichever way it came."""

    text: str
    ids: list[int]
    finish: str | None


def said(got: Any, choice: int = 0) -> Said:
    """Of an answer's JSON, or of its chunks."""
    if isinstance(got, dict):
        one = got["choices"][choice]
        text = one["message"]["content"] if "message" in one else one["text"]
        return Said(text, one["token_ids"], one["finish_reason"])
    parts = [c for chunk in got for c in chunk["choices"] if c["index"] == choice]
    text = "".join(p["delta"].get("content", "") if "delta" in p else p["text"] for p in parts)
    ids = [i for p in parts for i in p.get("token_ids") or []]
    return Said(text, ids, parts[-1]["finish_reason"])


async def until_running(engine: Engine, count: int, wait_s: float = 5) -> None:
    """Return when so many sequences run in the engine. Raises TimeoutError."""
    async with asyncio.timeout(wait_s):
        # An engine tells its load only to those who ask.
        while (await engine.load()).running != count:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
