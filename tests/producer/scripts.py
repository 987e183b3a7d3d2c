"""What scripted workers do, and the answers that they give."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.producer.scripted import USAGE, Script, ScriptedWorker

from forebay_shared.calls import Grant
from forebay_shared.records import Result

ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!"},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
RAW = json.dumps(ANSWER, indent=1).encode()
"""Odd white space, so that a test sees whether the answer was parsed and written anew."""
DONE = Result("done", 200, usage=USAGE, finish_reason="stop")


def chunk(text: str, **choice: Any) -> bytes:
    one = {"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": [one]}).encode()


def wants_stream(grant: Grant) -> bool:
    return bool(json.loads(grant.head)["stream"])


async def answer(worker: ScriptedWorker, grant: Grant) -> None:
    """The whole answer at once, streamed where the client wants that."""
    if wants_stream(grant):
        assert await worker.emit(grant, 0, chunk("Hel")) == "ok"
        await worker.finish(grant, DONE, 1, chunk("lo"), chunk("!"))
    else:
        await worker.finish(grant, Result("done", 200, usage=USAGE, body=RAW))


async def stay(worker: ScriptedWorker, grant: Grant) -> None:
    """Run for ever."""


def end_with(result: Result, *events: bytes) -> Script:
    """End with this result, after these chunks."""

    async def script(worker: ScriptedWorker, grant: Grant) -> None:
        await worker.finish(grant, result, 0, *events)

    return script


def gated(gate: asyncio.Event, script: Script = answer) -> Script:
    """Wait for the gate first."""

    async def waiting(worker: ScriptedWorker, grant: Grant) -> None:
        await gate.wait()
        await script(worker, grant)

    return waiting
