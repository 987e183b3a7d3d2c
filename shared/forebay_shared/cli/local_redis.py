"""The Redis of `forebay up`: the one that is named, or an embedded server that is kept running."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from forebay_shared.cli.redis_place import open_redis
from forebay_shared.cli.terminal import Problem, say
from forebay_shared.embedded import EmbeddedError, EmbeddedServer

FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 10.0


class NamedRedis:
    """A Redis that somebody else runs."""

    pid: int | None = None

    def __init__(self, url: str) -> None:
        self.url = url

    async def keep(self) -> None:
        """Returns at once: there is nothing to keep."""


class OwnRedis:
    """An embedded server; started again when it ends."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self.url = server.url

    @property
    def pid(self) -> int | None:
        """Of the server."""
        return self._server.pid

    async def keep(self) -> None:
        """Keep it running until cancelled."""
        while True:
            await _until_closed(self.url)
            if self._server.alive:
                continue  # it closed the connection alone, as CLIENT KILL does
            say("the embedded server ended; it is started again")
            await self._start_again()

    async def _start_again(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            self._server.stop()
            try:
                self._server.start()
                return
            except EmbeddedError as error:
                say(f"the embedded server does not start: {error}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)


async def _until_closed(url: str) -> None:
    """Returns when the server ends: an idle connection to it is closed then, and not before."""
    try:
        reader, writer = await asyncio.open_unix_connection(unquote(urlsplit(url).path))
    except OSError:
        return
    try:
        await reader.read()
    except OSError:
        return
    finally:
        writer.close()


@contextmanager
def running_redis(url: str | None, state: Path | None) -> Iterator[NamedRedis | OwnRedis]:
    """Redis for as long as the block lasts. Raises Problem where it cannot be had."""
    if url is not None:
        asyncio.run(_require_answer(url))
        yield NamedRedis(url)
        return
    server = EmbeddedServer(state)
    try:
        server.start()
    except EmbeddedError as error:
        raise Problem(str(error)) from None
    try:
        yield OwnRedis(server)
    finally:
        server.stop()


async def _require_answer(url: str) -> None:
    async with open_redis(url) as redis:
        await redis.ping()
