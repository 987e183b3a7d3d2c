"""The way of one process to Redis: cut, lossy or stalled when told to."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random

CHUNK_BYTES = 1 << 16


class Link:
    """Passes bytes between one process, which connects to `path`, and the server on `target`.

    `loss`: the chance that what the server says is thrown away and the connection cut, after the
    request has been carried out. While stalled nothing passes; connections stay open.
    """

    def __init__(self, path: Path, target: str) -> None:
        self.url = f"unix://{path}"
        self.loss = 0.0
        self.dice = Random()
        self.lost = 0
        self._path = path
        self._target = target.removeprefix("unix://")
        self._flows = asyncio.Event()
        self._flows.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections of this moment."""
        for writer in self._open:
            writer.transport.abort()

    def stall(self) -> None:
        self._flows.clear()

    def flow(self) -> None:
        """End a stall; what came meanwhile is passed on."""
        self._flows.set()

    def heal(self) -> None:
        self.loss = 0.0
        self.flow()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._flows.wait()
            await self._join(reader, writer)
        except OSError:
            pass  # the server is away, or one side broke the connection
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        down = asyncio.create_task(self._pass(up_reader, writer, lossy=True))
        up = asyncio.create_task(self._pass(reader, up_writer, lossy=False))
        try:
            await asyncio.wait([down, up], return_when=asyncio.FIRST_COMPLETED)
        finally:
            up_writer.transport.abort()
            for task in (down, up):
                task.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await task

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lossy: bool
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._flows.wait()
            if lossy and self.loss and self.dice.random() < self.loss:
                self.lost += 1
                return
            writer.write(data)
            await writer.drain()
