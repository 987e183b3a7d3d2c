"""What this server can do, by trying and not by its version: Valkey calls itself Redis 7.2.4."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_shared.cli.doctor.facts import Server
from forebay_shared.cli.doctor.findings import Finding, failure, ok, warning


def features(server: Server) -> Iterator[Finding]:
    """Functions are there, and this user may look at everything."""
    if server.has_functions:
        yield ok(version(server))
    else:
        yield failure(
            f"{version(server)} has no function libraries",
            "each step of Forebay is one function; without them nothing works",
            "use Redis 7.0 or later, or Valkey 7.2 or later",
        )
    if server.refused:
        yield warning(
            f"not all could be looked at: {'; '.join(server.refused)}",
            "what depends on it was not checked",
            "run this as the operator that `forebay doctor --acl` prints, if the service allows it",
        )


def version(server: Server) -> str:
    """What the server calls itself."""
    if valkey := server.info.get("valkey_version"):
        return f"Valkey {valkey}"
    return f"Redis {server.info.get('redis_version', 'of an unknown version')}"
