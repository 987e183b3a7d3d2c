"""A proxy before Redis that loses or holds back replies when told to."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress


class Proxy:
    """Passes bytes on between clients and the server on `target`, a unix socket's URL.

    After `lose(text)` the next request that has `text` in it is carried out, but its reply is
    thrown away and the client's connection cut; `lost` is set then. After `hold(text)` its reply
    is passed on only when `let_go` is set; `holding` is set when it has been carried out. Replies
    take `delay_s` longer than without it.
    """

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("unix://")
        self._folder = tempfile.mkdtemp(prefix="fb-", dir="/tmp")
        self._text: bytes | None = None
        self._then = self._cut
        self._server: asyncio.Server | None = None
        self.delay_s = 0.0
        self.url = f"unix://{self._folder}/proxy.sock"
        self.lost = asyncio.Event()
        self.holding = asyncio.Event()
        self.let_go = asyncio.Event()

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.url[7:])

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        shutil.rmtree(self._folder)

    def lose(self, text: str) -> None:
        self._text = text.encode()
        self._then = self._cut
        self.lost.clear()

    def hold(self, text: str) -> None:
        self._text = text.encode()
        self._then = self._wait

    async def _cut(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self.lost.set()

    async def _wait(self, _: asyncio.StreamWriter) -> None:
        self.holding.set()
        await self.let_go.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        chosen = asyncio.Event()
        down = asyncio.create_task(self._pass(up_reader, writer, chosen))
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self._text is not None and self._text in data:
                    self._text = None
                    chosen.set()
                up_writer.write(data)
        down.cancel()
        up_writer.close()
        writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chosen: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if chosen.is_set():  # it has been carried out
                    chosen.clear()
                    await self._then(writer)
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
