"""A tiny server that plays the producer: it answers as scripted and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Reply = web.StreamResponse | tuple[int, Any] | tuple[int, Any, dict[str, str]]
Script = Callable[["Asked"], Reply]
ID = "default.01JDX3M8Q5T2V9W7Y4Z6A1B0CD"


@dataclass(frozen=True)
class Asked:
    """One request as it came. `count`: how many came before it on this method and path."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    count: int

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class FakeProducer:
    """`scripts` by "METHOD path"; a path may end in `*`. `asked` is everything that came."""

    scripts: dict[str, Script] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def of(self, method: str, prefix: str) -> list[Asked]:
        """What was asked with this method below this path."""
        return [one for one in self.asked if one.method == method and one.path.startswith(prefix)]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        count = len(
            [1 for one in self.asked if (one.method, one.path) == (request.method, request.path)]
        )
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.read()
        asked = Asked(request.method, request.path, dict(request.query), headers, body, count)
        self.asked.append(asked)
        reply = self._script(asked)(asked)
        if isinstance(reply, web.StreamResponse):
            return reply
        status, value, *more = reply
        return web.json_response(value, status=status, headers=more[0] if more else None)

    def _script(self, asked: Asked) -> Script:
        for pattern, script in self.scripts.items():
            method, path = pattern.split(" ", 1)
            fits = asked.path.startswith(path[:-1]) if path.endswith("*") else asked.path == path
            if method == asked.method and fits:
                return script
        return lambda _: (404, error("Nothing is here."))


def error(message: str, code: str = "x") -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": "x", "param": None, "code": code}}


def models(*names: str) -> Script:
    """`/v1/models` with these names."""
    rows = [{"id": name, "object": "model"} for name in names]
    return lambda _: (200, {"object": "list", "data": rows})


def events(*data: str) -> web.Response:
    """A whole stream of events."""
    text = "".join(f"data: {one}\n\n" for one in data)
    return web.Response(text=text, content_type="text/event-stream")


def delta(text: str) -> str:
    """One chat chunk."""
    return json.dumps({"choices": [{"delta": {"content": text}}]})


def shown(state: str = "queued", **more: Any) -> dict[str, Any]:
    """A request as `GET /v1/requests/{id}` tells it."""
    usual: dict[str, Any] = {
        "id": ID,
        "object": "request",
        "state": state,
        "class": "normal",
        "model": "sim",
        "stream": False,
        "rank": None,
        "waits_for": None,
        "takes": 0,
        "attempts": 0,
        "crashes": 0,
        "chunks": 0,
        "admitted_at": 1_000.0,
        "started_at": None,
        "ended_at": None,
        "deadline_at": 1_600.0,
        "now": 1_002.5,
        "result": None,
    }
    return usual | more


@contextmanager
def serving() -> Iterator[FakeProducer]:
    """A fake producer on a free port, in a thread of its own."""
    fake = FakeProducer()
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", fake.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(5)
    yield fake
    loop.call_soon_threadsafe(stop.set)
    thread.join(5)
    loop.close()
