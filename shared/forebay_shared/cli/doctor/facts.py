"""What a server says of itself. Nothing is changed; what this user may not ask stays unknown."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from forebay_shared.library import source

CONFIG = (
    "appendonly", "appendfsync", "save", "no-appendfsync-on-rewrite", "stop-writes-on-bgsave-error",
    "client-output-buffer-limit", "timeout", "proto-max-bulk-len", "min-replicas-to-write",
    "min-replicas-max-lag", "maxmemory", "maxmemory-policy",
)  # fmt: skip
CLOCK_SAMPLES = 20
LIBRARY_PREFIX = "forebay_"
assert source().startswith("#!lua name=" + LIBRARY_PREFIX)

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Clock:
    """The server's clock: seconds ahead of this machine's, ± `doubt_s`; went it back meanwhile?"""

    ahead_s: float
    doubt_s: float
    went_back_s: float


@dataclass(slots=True)
class Server:
    """One server. `config`, `libraries` and `clients` are None where this user may not ask.

    `libraries` are names of Forebay's own; `clients` the names in CLIENT LIST.
    """

    name: str
    info: dict[str, Any] = field(default_factory=dict)
    config: dict[str, str] | None = None
    libraries: list[str] | None = None
    clients: list[str] | None = None
    clock: Clock = Clock(0.0, 0.0, 0.0)
    refused: list[str] = field(default_factory=list)
    """What could not be asked, in the server's words."""
    has_functions: bool = True

    def number(self, name: str) -> int:
        """A number of INFO; 0 where this server does not tell it."""
        return int(self.info.get(name, 0) or 0)

    def setting(self, name: str, default: str = "") -> str:
        """A setting; `default` where it is not known."""
        return (self.config or {}).get(name, default)


async def read_server(redis: Redis, name: str) -> Server:
    """Ask one server. Raises what Redis raises, but for what this user may not ask."""
    server = Server(name)
    server.info = await _ask(server, redis.info) or {}
    server.config = await _ask(server, lambda: read_config(redis))
    server.libraries = await _ask(server, lambda: read_libraries(redis))
    server.clients = await _ask(server, lambda: read_clients(redis))
    server.clock = await _ask(server, lambda: read_clock(redis)) or server.clock
    return server


async def _ask(server: Server, call: Callable[[], Awaitable[_Value]]) -> _Value | None:
    try:
        return await call()
    except ResponseError as error:
        text = str(error)
        lacks = text.lower().startswith("unknown")
        if not (lacks or isinstance(error, NoPermissionError)):
            raise
        server.refused.append(text.partition(", with args")[0])
        if lacks and "FUNCTION" in text.upper():
            server.has_functions = False
        return None


async def read_config(redis: Redis) -> dict[str, str]:
    """The settings that matter here; a server leaves out what it does not know."""
    found: Any = await redis.config_get(*CONFIG)
    return dict(found)


async def read_libraries(redis: Redis) -> list[str]:
    """Names of all libraries of Forebay's, of whatever version."""
    rows: Any = await redis.function_list(f"{LIBRARY_PREFIX}*")
    return sorted(
        dict(zip(row[::2], row[1::2], strict=True))[b"library_name"].decode() for row in rows
    )


async def read_clients(redis: Redis) -> list[str]:
    """Names that connections have given themselves."""
    rows: Any = await redis.client_list()
    return [one["name"] for one in rows if one.get("name")]


async def read_clock(redis: Redis) -> Clock:
    """Compare clocks by the quickest of some answers; `went_back_s` is the longest step back."""
    best, back_s, last_s = Clock(0.0, float("inf"), 0.0), 0.0, 0.0
    for _ in range(CLOCK_SAMPLES):
        before_s = time.time()
        seconds, micros = await redis.time()
        after_s = time.time()
        server_s = seconds + micros / 1e6
        back_s, last_s = max(back_s, last_s - server_s), server_s
        doubt_s = abs(after_s - before_s) / 2
        if doubt_s < best.doubt_s:
            best = Clock(server_s - (before_s + after_s) / 2, doubt_s, 0.0)
    return Clock(best.ahead_s, best.doubt_s, back_s)
