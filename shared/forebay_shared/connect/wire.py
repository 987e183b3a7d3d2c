"""redis-py's connections, sturdy under uvloop."""

from __future__ import annotations

from collections.abc import Iterable

from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)


class Sturdy(AbstractConnection):
    """uvloop has an error of its own for writing to a connection that was reset.

    redis-py does not take it for a lost connection, and nobody would repeat the call.
    """

    async def _send_packed_command(self, command: Iterable[bytes]) -> None:
        writer = self._writer
        try:
            await super()._send_packed_command(command)
        except RuntimeError as error:
            if writer is None or not writer.is_closing():
                raise
            raise ConnectionResetError(str(error)) from error


class Plain(Sturdy, Connection):
    """Over TCP."""


class Secure(Sturdy, SSLConnection):
    """Over TLS."""


class Local(Sturdy, UnixDomainSocketConnection):
    """Over a unix socket."""


STURDY: dict[type[AbstractConnection], type[AbstractConnection]]
STURDY = {Connection: Plain, SSLConnection: Secure, UnixDomainSocketConnection: Local}
"""redis-py's class → ours."""
