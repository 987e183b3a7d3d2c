"""A proxy before a server: the test decides what becomes of each admit on its way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from tempfile import TemporaryDirectory

_ADMIT = b"forebay_admit"


class Fate(Enum):
    """What becomes of an admit."""

    PASS = auto()
    """It is answered."""
    UNANSWERED = auto()
    """It is carried out, and the connection closes before the answer."""
    HELD = auto()
    """The connection closes, and it is carried out when the test says so."""


@dataclass
class Proxy:
    """`fate` is that of all admits to come; `met` counts those that were not passed."""

    server_path: str
    url: str
    fate: Fate = Fate.PASS
    met: int = 0
    held: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        from_server, to_server = await asyncio.open_unix_connection(self.server_path)
        back = asyncio.create_task(_copy(from_server, writer))
        try:
            while data := await reader.read(1 << 16):
                if _ADMIT in data and self.fate is not Fate.PASS:
                    await self._end(data)
                    return
                to_server.write(data)
        except ConnectionError:
            return  # either side is gone; so is the other then
        finally:
            back.cancel()
            writer.close()
            to_server.close()

    async def _end(self, data: bytes) -> None:
        self.met += 1
        if self.fate is Fate.HELD:
            self.held.append(data)
        else:
            await self._carry_out(data)

    async def _carry_out(self, data: bytes) -> None:
        reader, writer = await asyncio.open_unix_connection(self.server_path)
        writer.write(data)
        assert await reader.read(1)
        writer.close()

    async def release(self) -> None:
        """Let the server carry out what is held."""
        while self.held:
            await self._carry_out(self.held.pop(0))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)


@contextlib.asynccontextmanager
async def proxy(server_url: str) -> AsyncIterator[Proxy]:
    """A proxy on a unix socket before the server of this unix URL."""
    with TemporaryDirectory(prefix="fb-", dir="/tmp") as folder:
        path = str(Path(folder) / "proxy.sock")
        one = Proxy(server_url.removeprefix("unix://"), f"unix://{path}")
        async with await asyncio.start_unix_server(one.serve, path):
            yield one
