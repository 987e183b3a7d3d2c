"""A load balancer as small as one can be: connections go in turn to the replicas that are ready."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import aiohttp

PROBE_EVERY_S = 0.1
PROBE_WAIT_S = 1.0
PIECE_BYTES = 1 << 16
_REPEAT = re.compile(rb"x-stainless-retry-count: ([1-9]\d*)\r\n", re.IGNORECASE)


class Balancer:
    """Listens on `url`, and passes bytes between each client and one replica of `replicas`.

    It looks no deeper than connections, so a client that keeps one stays with its replica until
    that one says `Connection: close`. A replica that refuses is passed over for the next.
    `repeats` counts requests that official SDKs sent again by themselves; `ready` is set once all
    replicas have been.
    """

    def __init__(self, replicas: Sequence[str]) -> None:
        self.url = ""
        self.repeats = 0
        self.ready = asyncio.Event()
        self._ready = dict.fromkeys(replicas, False)
        self._turn = 0
        self._server: asyncio.Server | None = None
        self._probing: list[asyncio.Task[None]] = []
        self._open: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._probing = [asyncio.create_task(self._probe(one)) for one in self._ready]

    async def close(self) -> None:
        """Break what is open, and end."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._probing, *self._open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self, replica: str) -> None:
        wait = aiohttp.ClientTimeout(PROBE_WAIT_S)
        async with aiohttp.ClientSession(timeout=wait) as http:
            while True:
                try:
                    async with http.get(f"{replica}/readyz") as answer:
                        self._ready[replica] = answer.status == 200
                    if all(self._ready.values()):
                        self.ready.set()
                except (aiohttp.ClientError, TimeoutError):
                    self._ready[replica] = False
                await asyncio.sleep(PROBE_EVERY_S)

    def _in_turn(self) -> list[str]:
        ready = [one for one, good in self._ready.items() if good]
        self._turn += 1
        at = self._turn % len(ready) if ready else 0
        return ready[at:] + ready[:at]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with suppress(asyncio.CancelledError):
                await self._join(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for replica in self._in_turn():
            place = urlsplit(replica)
            try:
                up_reader, up_writer = await asyncio.open_connection(place.hostname, place.port)
            except OSError:
                continue
            await self._pass_both(reader, writer, up_reader, up_writer)
            return

    async def _pass_both(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        """Until the replica has closed; a client that closes is passed on as such."""
        up = asyncio.create_task(self._requests(reader, up_writer))
        try:
            with suppress(OSError):
                while data := await up_reader.read(PIECE_BYTES):
                    writer.write(data)
                    await writer.drain()
        finally:
            up.cancel()
            up_writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                self.repeats += len(_REPEAT.findall(data))
                writer.write(data)
                await writer.drain()
            writer.close()
