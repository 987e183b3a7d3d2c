"""Adapter to any OpenAI-compatible server over HTTP; vLLM first.

How a failure of the transport is told: before a connection stood the engine has accepted
nothing (EngineUnreachable); from then on it may have accepted the call (EngineBroken), for a
connection that dies says nothing about how far the request came.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from yarl import URL

from forebay_worker.engine.base import (
    Answer,
    Chunk,
    EngineBroken,
    EngineBusy,
    EngineCall,
    EngineError,
    EngineEvent,
    EngineFailed,
    EngineRejected,
    EngineUnreachable,
    Load,
    Traits,
)
from forebay_worker.engine.metrics import parse_load
from forebay_worker.engine.sse import EventReader

HEALTH_TIMEOUT_S = 2.0
# uvicorn, and so vLLM, closes a connection idle for 5 s. Ours go well before that: a call sent
# into a connection that is just being closed could not be told from one that was accepted.
IDLE_CONNECTION_S = 2.0
# After [DONE] the server still has to end the body, or the connection cannot serve again.
BODY_END_S = 0.5
READ_BUFFER_BYTES = 256 * 1024
# Whose servers take `return_token_ids` and `continue_final_message`. Others may refuse a request
# with fields that they do not know, so they are not asked.
VLLM_OWNERS = frozenset({"vllm", "sim"})


class OpenAIEngine:
    """An OpenAI-compatible server at `base_url` (`http://host:port`, a last `/v1` is dropped).

    A call has no time limit of its own: whoever iterates stops it by closing. Raises ValueError
    for a base_url that is not http or https.
    """

    def __init__(
        self, base_url: str, api_key: str | None = None, connect_timeout_s: float = 5.0
    ) -> None:
        self._base = _base(base_url)
        self._api_key = api_key
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}
        self._traits: dict[str, Traits] = {}

    async def start(self) -> None:
        """Open the connection pool; connects to nothing yet."""
        headers = {"User-Agent": "forebay", "Accept-Encoding": "identity"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=IDLE_CONNECTION_S, socket_factory=_open_socket
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
        )

    async def close(self) -> None:
        """Close every connection; the server aborts what still ran on them."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
        headers = {
            "Content-Type": "application/json",
            "X-Request-Id": call.request_id,
            **call.headers,
        }
        async with self._request("POST", call.path, data=call.body, headers=headers) as response:
            content_type = response.headers.get("Content-Type", "application/json")
            if response.status >= 300:
                raise _error(response.status, content_type, await response.read())
            if not (call.stream and content_type.startswith("text/event-stream")):
                yield Answer(response.status, content_type, await response.read())
                return
            reader = EventReader()
            while True:
                for data in reader.feed(await _read(response.content)):
                    if data == b"[DONE]":
                        await _read_to_end(response.content)
                        return
                    # Quotes inside a JSON string are escaped: in most chunks this finds nothing.
                    if b'"error"' in data:
                        _raise_error_event(data)
                    yield Chunk(data)

    async def load(self) -> Load:
        """Read vLLM's gauges; an engine that shows none of them counts as empty."""
        async with self._request("GET", "/metrics") as response:
            return parse_load(await response.read() if response.status == 200 else b"")

    async def health(self) -> bool:
        try:
            async with (
                asyncio.timeout(HEALTH_TIMEOUT_S),
                self._request("GET", "/health") as response,
            ):
                return response.status == 200
        except (EngineError, TimeoutError):
            return False

    async def models(self) -> list[str]:
        async with self._request("GET", "/v1/models") as response:
            content_type = response.headers.get("Content-Type", "application/json")
            body = await response.read()
            if response.status != 200:
                raise _error(response.status, content_type, body)
            try:
                listed = json.loads(body)["data"]
                self._traits = {str(model["id"]): _traits(model) for model in listed}
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                raise EngineFailed(response.status, content_type, body) from e
        return list(self._traits)

    def traits(self, model: str) -> Traits:
        return self._traits.get(model, Traits())

    async def text_of(self, model: str, token_ids: Sequence[int]) -> str | None:
        asked = {"model": model, "tokens": list(token_ids)}
        async with self._request("POST", "/detokenize", json=asked) as response:
            body = await response.read()
        try:
            text = json.loads(body)["prompt"]
        except (ValueError, KeyError, TypeError):
            return None
        return text if isinstance(text, str) else None

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One exchange; on leaving, a body not read to its end closes the connection."""
        if self._session is None:
            raise EngineUnreachable("the engine's connection pool is not open")
        try:
            response = await self._session.request(
                method, self._url(path), allow_redirects=False, **options
            )
            try:
                yield response
            finally:
                response.close()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as e:
            raise EngineUnreachable(f"no connection to the engine: {type(e).__name__}") from e
        except (aiohttp.ClientError, OSError) as e:
            raise EngineBroken(f"the engine's connection broke: {type(e).__name__}") from e

    def _url(self, path: str) -> URL:
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = URL(self._base + path)
        return url


def _base(base_url: str) -> str:
    url = URL(base_url)
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"engine base_url must be http(s)://host[:port], got {base_url!r}")
    return base_url.rstrip("/").removesuffix("/v1")


def _traits(model: dict[str, Any]) -> Traits:
    is_vllm = model.get("owned_by") in VLLM_OWNERS
    most = model.get("max_model_len")
    return Traits(is_vllm, is_vllm, most if isinstance(most, int) else None)


def _open_socket(info: Any) -> socket.socket:
    """A socket that notices within about a minute that the engine's host is gone."""
    family, kind, protocol, _, _ = info
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # macOS lacks some of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


async def _read(content: aiohttp.StreamReader) -> bytes:
    read = await content.readany()
    if not read:
        raise EngineBroken("the engine's stream ended without [DONE]")
    return read


async def _read_to_end(content: aiohttp.StreamReader) -> None:
    """Let the body end so that the connection can be used again; never more than BODY_END_S."""
    if content.at_eof():
        return
    try:
        async with asyncio.timeout(BODY_END_S):
            while await content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError):
        # The answer is complete; what is lost is the connection, which the caller closes.
        return


def _raise_error_event(data: bytes) -> None:
    """Raise EngineFailed if this event's data is an error; a chunk may just speak of one."""
    try:
        event = json.loads(data)
    except ValueError as e:
        raise EngineBroken("an event of the engine's stream is not JSON") from e
    error = event.get("error") if isinstance(event, dict) else None
    if error:
        code = error.get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code <= 599 else 500
        raise EngineFailed(status, "application/json", data)


def _error(status: int, content_type: str, body: bytes) -> EngineError:
    if status == 503:
        return EngineBusy("the engine answered 503")
    kind = EngineRejected if 400 <= status < 500 else EngineFailed
    return kind(status, content_type, body)
