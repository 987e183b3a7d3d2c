"""A server that answers every request with the bytes a test wrote down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from forebay_worker.engine import EngineCall, EngineEvent
from forebay_worker.engine.openai import OpenAIEngine

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Wire:
    """What came in over all connections."""

    url: str = ""
    connections: int = 0
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Head and body of each."""
    received: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def wire(script: Script) -> AsyncIterator[Wire]:
    """Serve `script` on a free port; it may answer several requests of one connection."""
    seen = Wire()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                seen.requests.append(await read_request(reader))
                seen.received.set()
                await script(reader, writer)
        seen.hung_up.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        server.close()


@asynccontextmanager
async def engine_at(url: str, api_key: str | None = None) -> AsyncIterator[OpenAIEngine]:
    """A started adapter."""
    engine = OpenAIEngine(url, api_key)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return head, await reader.readexactly(length)


def reply(body: bytes, status: str = "200 OK", content_type: str = "application/json") -> Script:
    """A whole answer."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return script


def stream(*parts: bytes, end: bool = True) -> Script:
    """A chunked event stream, one write for each part; without `end` the body stays open."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        for part in parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        if end:
            writer.write(b"0\r\n\r\n")

    return script


def then_close(script: Script) -> Script:
    """The script, and then the connection ends."""

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await script(reader, writer)
        await writer.drain()
        writer.close()

    return closing


def raw(data: bytes) -> Script:
    """Just these bytes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return script


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """No answer."""


def call(
    stream: bool = False, body: bytes = b"{}", headers: Mapping[str, str] | None = None
) -> EngineCall:
    return EngineCall("r-1", "/v1/chat/completions", body, stream, headers or {})


async def collect(engine: OpenAIEngine, engine_call: EngineCall) -> list[EngineEvent]:
    return [event async for event in engine.generate(engine_call)]
