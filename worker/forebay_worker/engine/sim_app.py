"""A simulated engine's HTTP face (plain ASGI, so that little is measured but the engine)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from forebay_worker.engine.base import (
    Answer,
    EngineBroken,
    EngineBusy,
    EngineCall,
    EngineError,
    EngineStatus,
)
from forebay_worker.engine.sim import SimEngine
from forebay_worker.engine.sim_answer import compact_json
from forebay_worker.engine.sim_fields import error_body
from forebay_worker.engine.sim_metrics import metrics_page

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_JSON = "application/json"
_PASSED_ON = ("x-vllm-priority",)


class SimApp:
    """Serves one SimEngine over ASGI."""

    def __init__(self, engine: SimEngine) -> None:
        self._engine = engine

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; a client that leaves stops the engine's work at once."""
        if scope["method"] != "POST":
            await _send_whole(send, await self._look_up(scope["path"]))
            return
        body = await _read_body(receive)
        if body is None:
            return
        work = asyncio.ensure_future(self._generate(_call(scope, body), send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            work.cancel()
            gone.cancel()

    async def _look_up(self, path: str) -> Answer:
        """What a GET asks for."""
        engine = self._engine
        if path == "/health":
            return Answer(200 if await engine.health() else 503, "text/plain", b"")
        if path == "/v1/models":
            most = engine.profile.max_model_len
            models = [
                {"id": m, "object": "model", "owned_by": "sim", "max_model_len": most}
                for m in await engine.models()
            ]
            return Answer(200, _JSON, compact_json({"object": "list", "data": models}))
        if path == "/metrics":
            model = (await engine.models())[0]
            page = metrics_page(model, engine.profile, await engine.load(), engine.totals)
            return Answer(200, "text/plain; version=0.0.4; charset=utf-8", page.encode())
        if path == "/sim/log":
            return Answer(200, _JSON, compact_json([asdict(call) for call in engine.calls]))
        return Answer(404, _JSON, b'{"detail":"Not Found"}')

    async def _generate(self, call: EngineCall, send: Send) -> None:
        streaming = False
        try:
            async with aclosing(self._engine.generate(call)) as events:
                async for event in events:
                    if isinstance(event, Answer):
                        await _send_whole(send, event)
                        return
                    if not streaming:
                        streaming = True
                        await _start(send, 200, "text/event-stream; charset=utf-8")
                    await _send_event(send, event.data)
            await _end_stream(send)
        except EngineError as error:
            await _send_error(send, error, streaming)


def _call(scope: Message, body: bytes) -> EngineCall:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return EngineCall(
        request_id=headers.get("x-request-id") or uuid.uuid4().hex,
        path=scope["path"],
        body=body,
        stream=False,  # the simulation reads it from the body
        headers={name: headers[name] for name in _PASSED_ON if name in headers},
    )


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body; None when the client left before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, status: int, content_type: str, length: int | None = None) -> None:
    headers = [(b"content-type", content_type.encode())]
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_whole(send: Send, answer: Answer) -> None:
    await _start(send, answer.status, answer.content_type, len(answer.body))
    await send({"type": "http.response.body", "body": answer.body})


async def _send_event(send: Send, data: bytes) -> None:
    body = b"data: " + data + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _end_stream(send: Send) -> None:
    await _send_event(send, b"[DONE]")
    await send({"type": "http.response.body", "body": b""})


async def _send_error(send: Send, error: EngineError, streaming: bool) -> None:
    """As vLLM: an error before the stream is a status, after that an event and `[DONE]`."""
    if isinstance(error, EngineBroken):
        # Returning with the answer unfinished makes the server close the connection.
        if not streaming:
            await _start(send, 200, _JSON, length=1_000)
            await send({"type": "http.response.body", "body": b"{", "more_body": True})
        return
    if isinstance(error, EngineStatus):
        answer = Answer(error.status, error.content_type, error.body)
    else:
        status = 503 if isinstance(error, EngineBusy) else 500
        answer = Answer(status, _JSON, error_body(status, "ServiceUnavailable", str(error)))
    if streaming:
        await _send_event(send, answer.body)
        await _end_stream(send)
    else:
        await _send_whole(send, answer)
