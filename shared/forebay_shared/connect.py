"""The one place that makes Redis clients, and that says what an error of theirs means.

Clients speak RESP2 and return bytes. The library's functions answer in arrays and bulk strings,
which look the same in both protocols; XREAD does not (`[[stream, [(id, fields)]]]` in RESP2), so
one protocol is set on purpose. RESP2 costs the client no more time than RESP3, saves the HELLO and
goes through proxies that know no HELLO.

Nothing is retried here. Every function of the library may be repeated, but whether a repeat still
makes sense (the deadline, a drain, a client that left) only the caller knows.
"""

from __future__ import annotations

import re
import socket
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import UnixDomainSocketConnection, parse_url
from redis.maint_notifications import MaintNotificationsConfig

RESP = 2
BLOCK_MARGIN_S = 5.0
HEALTH_CHECK_S = 30.0

SCHEMES = ("redis", "rediss", "unix")
_LISTED = ", ".join(f"{scheme}://" for scheme in SCHEMES)
URL_OPTIONS = frozenset(
    ("db", "ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname")
) | {"ssl_ciphers", "ssl_keyfile", "ssl_password"}
"""What may follow `?` in a URL. The rest of redis-py's options are Forebay's own decisions."""

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

_AWAY = (
    exceptions.ConnectionError,  # also LOADING, a wrong password and "no connection available"
    exceptions.TimeoutError,
    exceptions.ClusterError,  # also CLUSTERDOWN and MASTERDOWN
    exceptions.SlotNotCoveredError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
)
_LOGIN = (exceptions.AuthenticationError, exceptions.AuthorizationError)
# Codes that redis-py has no class for. BUSY: a script runs for too long, nothing else does.
_AWAY_CODES = frozenset(["MISCONF", "NOREPLICAS", "BUSY"])
_CODE = re.compile(r"(?:Command # .* caused error: \(['\"])?([A-Z]+)\b", re.DOTALL)
_SECRET_OPTION = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)


def connect(
    url: str,
    *,
    max_connections: int = 50,
    timeout_s: float = 5.0,
    connect_timeout_s: float = 2.0,
    pool_wait_s: float = 5.0,
    name: str | None = None,
) -> Redis:
    """Makes a client for ordinary calls; it connects at the first.

    A call waits up to `pool_wait_s` for one of `max_connections`, up to `connect_timeout_s` for the
    server to accept, and up to `timeout_s` for each read; then it raises what `redis_away` knows.
    `name` shows in CLIENT LIST. Raises ValueError for a URL it cannot use, without its secrets.
    """
    for limit in (max_connections, timeout_s, connect_timeout_s, pool_wait_s):
        if limit <= 0:
            raise ValueError("limits of a Redis client must be above 0")
    pool = BlockingConnectionPool(
        max_connections=max_connections,
        timeout=pool_wait_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=connect_timeout_s,
        client_name=name,
        **_common(),
        **_address(url),
    )
    return Redis.from_pool(pool)


def connect_blocking(url: str, block_s: float, *, name: str | None = None) -> Redis:
    """Makes a client for one reader that blocks in Redis for up to `block_s` at a time.

    It has a single connection, since a blocked one serves nobody else, and gives up on a silent
    server after `block_s` + BLOCK_MARGIN_S. Cancelling the read closes that connection at once;
    the next read opens another.
    """
    if block_s <= 0:
        raise ValueError("block_s must be above 0: Redis takes 0 for ever")
    return connect(url, max_connections=1, timeout_s=block_s + BLOCK_MARGIN_S, name=name)


def redis_away(exc: BaseException) -> bool:
    """Whether Redis cannot serve now and may later: repeat the call, fail no request for it.

    True for lost and refused connections, time-outs, LOADING, READONLY, MISCONF, NOREPLICAS,
    MASTERDOWN, CLUSTERDOWN, TRYAGAIN, BUSY and a cluster client at its wits' end. After a time-out
    or a lost connection the call may have been carried out. A full Redis is `redis_full`.
    """
    return isinstance(exc, _AWAY) or _code(exc) in _AWAY_CODES


def redis_full(exc: BaseException) -> bool:
    """Whether Redis refused the call whole because it is at maxmemory."""
    return isinstance(exc, exceptions.OutOfMemoryError) or _code(exc) == "OOM"


def login_refused(exc: BaseException) -> bool:
    """Whether the password or user is wrong. `redis_away` is true as well: a running process
    keeps what it holds and waits for the operator, a starting one had better say so and end."""
    # On a unix socket redis-py wraps whatever goes wrong while it connects.
    return isinstance(exc, _LOGIN) or isinstance(exc.__cause__, _LOGIN)


def safe_url(url: str) -> str:
    """The URL with its password masked, for logs and messages. Rather hides too much."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "***"
    # The last @ and not the first: an unescaped @, / or # in a password must not show its tail.
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    shown = f"{user}:***" if colon else "***"
    return _SECRET_OPTION.sub(r"\1***", f"{scheme}://{shown}@{place}" if at else url)


def _common() -> dict[str, Any]:
    return {
        "protocol": RESP,
        "decode_responses": False,  # bodies are bytes
        "retry": None,
        "driver_info": None,  # spares two calls a connection, and their permissions
        "health_check_interval": HEALTH_CHECK_S,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def _address(url: str) -> dict[str, Any]:
    """Reads the URL into redis-py's arguments. Cluster and Sentinel schemes would branch here."""
    try:
        address: dict[str, Any] = dict(parse_url(url))
        problem = _problem(url)
    except ValueError:
        # Not raised from here: the parsers quote what they choke on, and that may be the password.
        problem = f"it must begin with {_LISTED}, and a password in it be percent-encoded"
    if problem:
        raise ValueError(f"Redis URL {safe_url(url)} cannot be used: {problem}")
    if address.get("connection_class") is not UnixDomainSocketConnection:
        address |= {"socket_keepalive": True, "socket_keepalive_options": _KEEPALIVE}
    return address


def _problem(url: str) -> str | None:
    parts = urlsplit(url)
    unknown = {option for option, _ in parse_qsl(parts.query)} - URL_OPTIONS
    if unknown:
        return f"option {', '.join(sorted(unknown))} is not one of {', '.join(sorted(URL_OPTIONS))}"
    if parts.fragment:
        return "escape the # in it as %23"
    if parts.scheme == "unix":
        return None if parts.path.startswith("/") else "the socket's path must be absolute"
    if not re.fullmatch(r"/?\d*", parts.path):
        return "after the host only the number of a database may follow"
    return None


def _code(exc: BaseException) -> str | None:
    """The first word of an error reply; redis-py puts its own words before it in a pipeline."""
    found = _CODE.match(str(exc)) if isinstance(exc, exceptions.ResponseError) else None
    return found and found[1]
