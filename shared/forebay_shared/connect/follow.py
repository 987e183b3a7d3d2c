"""Connections that find their server by asking for it, and follow it when it moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from forebay_shared.connect.address import Address, Kind, Node
from forebay_shared.connect.judge import Moved, NoPrimary
from forebay_shared.connect.primaries import Primaries, primaries_of
from forebay_shared.connect.wire import Plain, Secure

# The server has said that it did not carry out the call: the only one that is made again here.
_ONCE_MORE = Retry(NoBackoff(), 1, supported_errors=(Moved,))
_STALE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterError,
)


class Following(Plain):
    """A connection to whichever server is the primary of a slot when it connects.

    It takes no server that says that it is a replica. Whatever goes wrong on it lets the next one
    that connects ask again where the primary is.
    """

    def __init__(self, *, address: Address, slot: int, **options: Any) -> None:
        super().__init__(**options)
        self.slot = slot
        self._address = address
        self._primaries: Primaries | None = None

    def node(self) -> Node:
        return Node(self.host, self.port)

    def leave(self) -> None:
        """Close at once; a call under way fails, the next one connects anew."""
        # Not `disconnect`, which would take the streams away under a call that uses them.
        if self._writer is not None:
            self._writer.transport.abort()

    @property
    def _where(self) -> Primaries:
        # Not before there is a loop; then kept, since only connections keep it.
        if self._primaries is None:
            self._primaries = primaries_of(self._address)
        return self._primaries

    @contextmanager
    def _doubting(self) -> Iterator[None]:
        try:
            yield
        except (*_STALE, OSError):
            self._where.doubt()
            raise

    async def _connect(self) -> None:
        self.host, self.port = await self._where.find(self.slot)
        with self._doubting():
            await super()._connect()  # type: ignore[no-untyped-call]
        self._where.follow(self)

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Log in, and see that it is a primary; in the time that a connection may take."""
        try:
            async with asyncio.timeout(self.socket_connect_timeout):
                await super().on_connect_check_health(check_health)
                await self._require_primary()
        except TimeoutError:
            # A server that hangs still accepts.
            self._where.doubt()
            await self.disconnect(nowait=True)
            raise exceptions.TimeoutError(f"{self.node()} accepts and does not answer") from None

    async def _require_primary(self) -> None:
        # HELLO is the one command that tells it to every user.
        await self.send_command("HELLO", self.protocol, check_health=False)
        said = await self.read_response()
        if said[said.index(b"role") + 1] != b"master":
            self._where.doubt()
            raise NoPrimary(f"{self.node()} is a replica")

    async def can_read(self) -> bool:
        """Asked before a call goes out: what is there to read then is the connection's end."""
        readable: bool = await super().can_read()
        if readable:
            self._where.doubt()
        return readable

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        with self._doubting():
            await super().send_packed_command(command, check_health)

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            with self._doubting():
                return await super().read_response(*args, **options)
        except exceptions.MovedError as error:
            # A node that may not tell names gives the port alone.
            to = Node(error.host.strip("?") or self.host, error.port)
            await self.disconnect(nowait=True)
            self._where.moved(error.slot_id, to)
            raise Moved(str(error)) from error
        except _STALE:
            await self.disconnect(nowait=True)
            raise


class FollowingTLS(Following, Secure):
    """The same over TLS."""


class FollowingPool(BlockingConnectionPool):
    """Connections to the primary of one slot; `at` opens others beside it, closed with it."""

    def __init__(self, address: Address, slot: int, **options: Any) -> None:
        self.slot = slot
        self._address = address
        self._options = options
        self._others: dict[int, Redis] = {}
        servers = dict(address.options)
        secure = servers.pop("connection_class", Connection) is SSLConnection
        super().__init__(
            connection_class=FollowingTLS if secure else Following,
            address=address,
            slot=slot,
            **options | servers | {"retry": _ONCE_MORE},
        )

    def leads_to(self, slot: int) -> bool:
        """Whether a call about this slot is right here: always, where one server has all."""
        return slot == self.slot or self._address.kind is not Kind.CLUSTER

    def at(self, slot: int) -> Redis:
        """A client of the primary of another slot, the same each time."""
        if slot not in self._others:
            self._others[slot] = self.fresh(slot)
        return self._others[slot]

    def fresh(self, slot: int) -> Redis:
        """A client of the primary of a slot, to be closed by who asked for it."""
        return Redis.from_pool(FollowingPool(self._address, slot, **self._options))

    async def slots(self) -> list[int]:
        """One slot of each primary. Raises NoPrimary."""
        return await primaries_of(self._address).slots()

    async def aclose(self) -> None:
        for other in self._others.values():
            await other.aclose()
        await super().aclose()
