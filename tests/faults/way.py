"""The way of one process to Redis: it loses single replies, or forgets connections."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress

PIECE_BYTES = 1 << 16


class Way:
    """Passes bytes on between one process, which connects to `url`, and the server on `target`.

    After `lose(word)` the next request with `word` in it is carried out, its reply is thrown away
    and the connection cut; `lost` is set then. After `swallow` the connections of that moment stay
    open and pass nothing any more in either direction, as when a router has forgotten them.
    """

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("unix://")
        self._folder = tempfile.mkdtemp(prefix="fb-", dir="/tmp")
        self.url = f"unix://{self._folder}/way.sock"
        self.lost = asyncio.Event()
        self._word: bytes | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.url[7:])

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()
        shutil.rmtree(self._folder, ignore_errors=True)

    def lose(self, word: str) -> None:
        self._word = word.encode()
        self.lost.clear()

    def swallow(self) -> int:
        """Forget the connections of this moment; how many there were."""
        forgotten = len(self._passing) // 2
        for task in self._passing:
            task.cancel()
        return forgotten

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):  # asyncio complains of a cancelled server task
            await self._join(reader, writer)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()  # the server is away
            return
        cut = asyncio.Event()
        self._open |= {writer, up_writer}
        both = [
            asyncio.create_task(self._requests(reader, up_writer, cut)),
            asyncio.create_task(self._replies(up_reader, writer, cut)),
        ]
        self._passing |= set(both)
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if any(task.cancelled() for task in done):
            return  # forgotten: both ends stay open
        for task in both:
            task.cancel()
        self._passing -= set(both)
        for one in (writer, up_writer):
            one.transport.abort()
        self._open -= {writer, up_writer}

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                if self._word is not None and self._word in data:
                    self._word = None
                    cut.set()
                writer.write(data)

    async def _replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                if cut.is_set():  # it has been carried out
                    self.lost.set()
                    return
                writer.write(data)
