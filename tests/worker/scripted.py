"""An engine that does what a test's script says, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence

from forebay_worker.engine import (
    Answer,
    Chunk,
    EngineBroken,
    EngineCall,
    EngineEvent,
    EngineUnreachable,
    Load,
    Traits,
)

Script = Callable[[EngineCall], AsyncGenerator[EngineEvent]]


class Call:
    """One call as the engine saw it: `began` and `over` are set when they happen."""

    def __init__(self, call: EngineCall) -> None:
        self.asked = call
        self.began = asyncio.Event()
        self.over = asyncio.Event()
        self.how = "runs"


class ScriptedEngine:
    """Runs `script` for every call; `up` is what health says, `served` are its models."""

    def __init__(self, script: Script, *served: str) -> None:
        self.script = script
        self.served = served or ("m",)
        self.up = True
        self.calls: list[Call] = []
        self.called = asyncio.Event()
        self.able = Traits()
        self.loaded = Load(0, 0, 0.0, 0, None, None)

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
        seen = Call(call)
        self.calls.append(seen)
        self.called.set()
        seen.began.set()
        try:
            async for event in self.script(call):
                yield event
            seen.how = "done"
        except (GeneratorExit, asyncio.CancelledError):
            seen.how = "aborted"
            raise
        except Exception:
            seen.how = "failed"
            raise
        finally:
            seen.over.set()

    async def load(self) -> Load:
        if not self.up:
            raise EngineUnreachable("down")
        return self.loaded

    async def health(self) -> bool:
        return self.up

    def traits(self, model: str) -> Traits:
        return self.able

    async def text_of(self, model: str, token_ids: Sequence[int]) -> str | None:
        return None

    async def models(self) -> list[str]:
        if not self.up:
            raise EngineUnreachable("down")
        return list(self.served)


def answer(text: str = "hello") -> bytes:
    """A chat completion as engines send it."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return json.dumps({"choices": [choice | {"finish_reason": "stop"}], "usage": usage}).encode()


def chunk(text: str = "", finish: str | None = None, role: str | None = None) -> bytes:
    """A chunk of a streamed chat completion."""
    delta = {"role": role, "content": text} if role else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"choices": [choice]}, separators=(",", ":")).encode()


USAGE_CHUNK = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'


async def answers(call: EngineCall) -> AsyncGenerator[EngineEvent]:
    """Answer at once: whole, or as a stream of role, two texts and usage if it was asked for."""
    if not call.stream:
        yield Answer(200, "application/json", answer())
        return
    yield Chunk(chunk(role="assistant"))
    yield Chunk(chunk("hel"))
    yield Chunk(chunk("lo", finish="stop"))
    if b'"include_usage":true' in call.body:
        yield Chunk(USAGE_CHUNK)


async def breaks(call: EngineCall) -> AsyncGenerator[EngineEvent]:
    """Break off before anything came."""
    raise EngineBroken("broken")
    yield


class Held:
    """A script that says it has begun (streams: after one token) and answers when released."""

    def __init__(self, tokens: int = 1) -> None:
        self.release = asyncio.Event()
        self._tokens = tokens

    async def __call__(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
        if call.stream:
            for number in range(self._tokens):
                yield Chunk(chunk(f" {number}"))
        await self.release.wait()
        if call.stream:
            yield Chunk(chunk(" end", finish="stop"))
        else:
            yield Answer(200, "application/json", answer())
