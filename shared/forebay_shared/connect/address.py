"""Reading a Redis URL: one server, the nodes of a cluster, or Sentinels and their service.

redis://[user:password@]host[:port][/database][?options]      one server
rediss://…                                                     the same over TLS
unix://[user:password@]/path/of/the/socket[?db=database]       one server on this machine
redis+cluster://[user:password@]host[:port][,host[:port]…]     a cluster; any of its nodes
redis+sentinel://[user:password@]host[:port][,…]/service[/database]
                                                               the primary that Sentinels name
rediss+cluster:// and rediss+sentinel://                       these over TLS, every connection
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio.connection import parse_url

SCHEMES = (
    "redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel",
    "rediss+sentinel",
)  # fmt: skip
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
TLS_OPTIONS = frozenset(TLS_FILES) | {
    "ssl_ca_path", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers", "ssl_password",
}  # fmt: skip
SENTINEL_OPTIONS = frozenset(("sentinel_username", "sentinel_password"))
"""For the Sentinels themselves; user and password before the @ are for the servers."""

_LISTED = ", ".join(f"{scheme}://" for scheme in SCHEMES)
_UNREADABLE = f"it must begin with {_LISTED}, and a password in it be percent-encoded"
_CERT_REQS = ("none", "optional", "required")
_SECRET_OPTION = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)


class Kind(Enum):
    """How the server to speak to is found."""

    SINGLE = "redis"
    CLUSTER = "redis+cluster"
    SENTINEL = "redis+sentinel"


class Node(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says.

    `nodes`: those to ask where the primary is, none for one server. `options`: redis-py's arguments
    for a connection to a server; `asking`: to one of the `nodes`.
    """

    url: str = field(repr=False)
    kind: Kind
    nodes: tuple[Node, ...]
    service: str
    options: Mapping[str, Any] = field(repr=False)
    asking: Mapping[str, Any] = field(repr=False)


class _Problem(Exception):
    """Why a URL cannot be used, without its secrets."""


def read_url(url: str) -> Address:
    """What the URL says; connects to nothing. Raises ValueError that shows no secret of it."""
    try:
        return _read(url)
    except _Problem as problem:
        why = str(problem)
    except ValueError:
        # Not raised from here: the parsers quote what they choke on, and that may be the password.
        why = _UNREADABLE
    raise ValueError(f"Redis URL {safe_url(url)} cannot be used: {why}")


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


def _read(url: str) -> Address:
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError
    readers: dict[str, Callable[[str, SplitResult], Address]]
    readers = {"cluster": _read_cluster, "sentinel": _read_sentinel}
    read = readers.get(parts.scheme.partition("+")[2], _read_single)
    return read(url, parts)


def _read_single(url: str, parts: SplitResult) -> Address:
    options: dict[str, Any] = dict(parse_url(url))
    _require_known(parts, {"db"})
    if parts.scheme == "unix":
        if not parts.path.startswith("/"):
            raise _Problem("the socket's path must be absolute")
    elif not re.fullmatch(r"/?\d*", parts.path):
        raise _Problem("after the host only the number of a database may follow")
    return Address(url, Kind.SINGLE, (), "", options, {})


def _read_cluster(url: str, parts: SplitResult) -> Address:
    nodes = _nodes(parts, 6379)
    _require_known(parts, set())
    if parts.path.strip("/") not in ("", "0"):
        raise _Problem("a cluster has database 0 alone: nothing may follow its nodes")
    options = _options(parts)
    return Address(url, Kind.CLUSTER, nodes, "", options, options)


def _read_sentinel(url: str, parts: SplitResult) -> Address:
    nodes = _nodes(parts, 26379)
    query = dict(_require_known(parts, {"db"} | SENTINEL_OPTIONS))
    service, _, database = parts.path.removeprefix("/").partition("/")
    if not service:
        raise _Problem(
            "after the Sentinels the service that they watch must follow, "
            "as in redis+sentinel://host:26379/mymaster"
        )
    if not re.fullmatch(r"\d*", database):
        raise _Problem("after the service only the number of a database may follow")
    options = _options(parts, database)
    asking = {name: value for name, value in options.items() if name.startswith("ssl_")}
    asking |= {name: options[name] for name in ("connection_class",) if name in options}
    login = {"username": "sentinel_username", "password": "sentinel_password"}
    asking |= {name: query[option] for name, option in login.items() if option in query}
    return Address(url, Kind.SENTINEL, nodes, unquote(service), options, asking)


def _options(parts: SplitResult, database: str = "") -> dict[str, Any]:
    """redis-py's arguments for each server: all of the URL but where it is."""
    query = [pair for pair in parse_qsl(parts.query) if pair[0] not in SENTINEL_OPTIONS]
    login, at, _ = parts.netloc.rpartition("@")
    scheme = parts.scheme.partition("+")[0]
    read = parse_url(f"{scheme}://{login}{at}host/{database}?{urlencode(query)}")
    return {name: value for name, value in read.items() if name != "host"}


def _nodes(parts: SplitResult, usual_port: int) -> tuple[Node, ...]:
    return tuple(_node(one, usual_port) for one in parts.netloc.rpartition("@")[2].split(","))


def _node(text: str, usual_port: int) -> Node:
    parts = urlsplit(f"//{text}")
    port = parts.port  # raises ValueError for what is none
    if not parts.hostname:
        raise _Problem("each of its nodes must be a host or host:port, with commas between")
    return Node(parts.hostname, usual_port if port is None else port)


def _require_known(parts: SplitResult, others: set[str] | frozenset[str]) -> list[tuple[str, str]]:
    """The options after `?`. Raises _Problem for those that this kind of URL does not take.

    The rest of redis-py's options are Forebay's own decisions.
    """
    query = parse_qsl(parts.query)
    known = TLS_OPTIONS | others
    if unknown := {option for option, _ in query} - known:
        listed = ", ".join(sorted(known))
        raise _Problem(f"option {', '.join(sorted(unknown))} is not one of {listed}")
    if parts.fragment:
        raise _Problem("escape the # in it as %23")
    _require_tls(parts, dict(query))
    return query


def _require_tls(parts: SplitResult, query: Mapping[str, str]) -> None:
    named = sorted(TLS_OPTIONS & query.keys())
    if named and not parts.scheme.startswith("rediss"):
        raise _Problem(f"{named[0]} is for TLS, and that is asked for by rediss")
    for option in TLS_FILES:
        if option in query and not Path(query[option]).is_file():
            raise _Problem(f"{option}: there is no file {query[option]}")
    if query.get("ssl_cert_reqs", "required") not in _CERT_REQS:
        raise _Problem(f"ssl_cert_reqs must be one of {', '.join(_CERT_REQS)}")
