"""An engine behind a key: a small HTTP server that lets in whoever brings the right one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from tests.worker.scripted import answer

REFUSAL = b'{"error":{"message":"refused","type":"x","code":"x"}}'
LIST = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


class KeyedEngine:
    """Answers 200 to `key`, else `refusal`; `refuses_calls`: calls are refused with any key."""

    def __init__(self) -> None:
        self.key = "right"
        self.refusal = 401
        self.refuses_calls = False
        self.url = ""
        self.calls: list[Mapping[str, str]] = []
        """Headers of each call."""
        self.asked = asyncio.Event()
        """The models were asked for."""
        self.called = asyncio.Event()

    async def models(self, request: web.Request) -> web.Response:
        self.asked.set()
        return self._answer(request, LIST)

    async def chat(self, request: web.Request) -> web.Response:
        self.calls.append(request.headers)
        self.called.set()
        if self.refuses_calls:
            return web.Response(status=self.refusal, body=REFUSAL)
        return self._answer(request, answer())

    async def health(self, _: web.Request) -> web.Response:
        return web.Response()

    def _answer(self, request: web.Request, body: bytes) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=self.refusal, body=REFUSAL)
        return web.Response(body=body, content_type="application/json")


@asynccontextmanager
async def keyed_engine() -> AsyncIterator[KeyedEngine]:
    """Serves one on a free port."""
    engine = KeyedEngine()
    app = web.Application()
    app.router.add_get("/health", engine.health)
    app.router.add_get("/v1/models", engine.models)
    app.router.add_post("/v1/chat/completions", engine.chat)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()
