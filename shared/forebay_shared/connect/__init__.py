"""The one place that makes Redis clients, and that says what an error of theirs means.

Clients speak RESP2 and return bytes. The library's functions answer in arrays and bulk strings,
which look the same in both protocols; XREAD does not (`[[stream, [(id, fields)]]]` in RESP2), so
one protocol is set on purpose. RESP2 costs the client no more time than RESP3, saves the HELLO and
goes through proxies that know no HELLO.

A client speaks to one server: the one that is named, or the primary that serves one key, found by
asking Sentinels or the nodes of a cluster, and found again when it is another. `at` gives the
client for another key. Each pool has one hash tag, so that all its calls go to one server;
redis-py's own cluster client would send each function call twice, body and all, to learn its keys.

Nothing is retried here but a call that a server has sent elsewhere. Every function of the library
may be repeated, but whether a repeat still makes sense (the deadline, a drain, a client that left)
only the caller knows.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import Connection, UnixDomainSocketConnection
from redis.crc import key_slot
from redis.maint_notifications import MaintNotificationsConfig

from forebay_shared.connect.address import Address, Kind, read_url, safe_url
from forebay_shared.connect.follow import FollowingPool
from forebay_shared.connect.judge import (
    Unconfirmed,
    redis_away,
    redis_full,
    why_unusable,
)
from forebay_shared.connect.wire import STURDY
from forebay_shared.keys import POOLS

__all__ = [
    "BLOCK_MARGIN_S", "RESP", "Unconfirmed", "at", "connect", "connect_blocking", "each_primary",
    "redis_away", "redis_full", "safe_url", "why_unusable",
]  # fmt: skip

RESP = 2
BLOCK_MARGIN_S = 5.0
HEALTH_CHECK_S = 30.0

# A dead peer is found after 30 + 6 × 10 s, before the first NAT forgets the connection (350 s).
# macOS has another name for the first.
_KEEPALIVE = {
    getattr(socket, name): value
    for name, value in {
        "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE": 30,
        "TCP_KEEPINTVL": 10,
        "TCP_KEEPCNT": 6,
    }.items()
    if hasattr(socket, name)
}


def connect(
    url: str,
    *,
    key: str = POOLS,
    max_connections: int = 50,
    timeout_s: float = 5.0,
    connect_timeout_s: float = 2.0,
    pool_wait_s: float = 5.0,
    name: str | None = None,
) -> Redis:
    """Makes a client for calls about `key` and others of its slot; it connects at the first.

    A call waits up to `pool_wait_s` for one of `max_connections`, up to `connect_timeout_s` for the
    server to accept, and up to `timeout_s` for each read; then it raises what `redis_away` knows.
    `name` shows in CLIENT LIST. Raises ValueError for a URL it cannot use, without its secrets.
    """
    for limit in (max_connections, timeout_s, connect_timeout_s, pool_wait_s):
        if limit <= 0:
            raise ValueError("limits of a Redis client must be above 0")
    limits = {
        "max_connections": max_connections,
        "timeout": pool_wait_s,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": connect_timeout_s,
        "client_name": name,
    }
    return Redis.from_pool(_pool(read_url(url), key, limits))


def connect_blocking(
    url: str, block_s: float, *, key: str = POOLS, name: str | None = None
) -> Redis:
    """Makes a client for one reader that blocks in Redis for up to `block_s` at a time.

    It has a single connection, since a blocked one serves nobody else, and gives up on a silent
    server after `block_s` + BLOCK_MARGIN_S. Cancelling the read closes that connection at once;
    the next read opens another.
    """
    if block_s <= 0:
        raise ValueError("block_s must be above 0: Redis takes 0 for ever")
    timeout_s = block_s + BLOCK_MARGIN_S
    return connect(url, key=key, max_connections=1, timeout_s=timeout_s, name=name)


def at(client: Redis, key: str) -> Redis:
    """The client for `key`: this one, but in a cluster one of the server that has the key.

    It has the same limits, is the same each time, and is closed with `client`.
    """
    pool, slot = client.connection_pool, key_slot(key.encode())
    if not isinstance(pool, FollowingPool) or pool.leads_to(slot):
        return client
    return pool.at(slot)


async def each_primary(client: Redis) -> AsyncIterator[Redis]:
    """A client for each primary of a cluster in turn, closed after it; for one server, itself.

    Raises what `redis_away` knows where nobody says which there are.
    """
    pool = client.connection_pool
    if not isinstance(pool, FollowingPool) or pool.leads_to(-1):
        yield client
        return
    for slot in await pool.slots():
        async with pool.fresh(slot) as primary:
            yield primary


def _pool(address: Address, key: str, limits: dict[str, Any]) -> BlockingConnectionPool:
    options = _common() | limits
    if address.kind is not Kind.SINGLE:
        return FollowingPool(address, key_slot(key.encode()), **options | _alive())
    kind = address.options.get("connection_class", Connection)
    if kind is not UnixDomainSocketConnection:
        options |= _alive()
    return BlockingConnectionPool(**options | {**address.options, "connection_class": STURDY[kind]})


def _common() -> dict[str, Any]:
    return {
        "protocol": RESP,
        "decode_responses": False,  # bodies are bytes
        "retry": None,
        "driver_info": None,  # spares two calls a connection, and their permissions
        "health_check_interval": HEALTH_CHECK_S,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def _alive() -> dict[str, Any]:
    return {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
