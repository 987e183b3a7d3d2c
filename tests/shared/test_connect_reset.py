"""A connection that was reset while it was idle is away, in every loop, and the next call works."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from redis import exceptions

from forebay_shared.connect import connect, redis_away

RESET = struct.pack("ii", 1, 0)


class Hasty:
    """Answers PING, and resets its connections when told to."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while data := await reader.read(4096):
            writer.write(b"+PONG\r\n" * data.count(b"PING"))

    def reset(self) -> None:
        for writer in self._writers:
            connection = writer.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        self._writers.clear()


async def reset_while_idle() -> None:
    hasty = Hasty()
    server = await asyncio.start_server(hasty.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with connect(f"redis://127.0.0.1:{port}") as client:
        own = client.client()
        await own.ping()
        hasty.reset()
        await client.ping()  # on another connection: the loop sees the reset meanwhile
        with pytest.raises(exceptions.ConnectionError) as caught:
            await own.ping()
        assert redis_away(caught.value)
        assert await own.ping()
        await own.aclose()
    server.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_connection_that_was_reset(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    run(reset_while_idle())
