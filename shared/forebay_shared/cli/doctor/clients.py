"""What the server does to its connections."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_shared.cli.doctor.facts import Server
from forebay_shared.cli.doctor.findings import Finding, failure, ok, warning

MIB = 1024 * 1024
LARGEST_REPLY = 64 * MIB
"""A reply carries a result of up to 16 MiB by default; below this a slow reader is cut off."""
QUIET_S = 45
"""Connections that wait are checked every 30 s, and block for up to 10 s."""
HIGH_SHARE = 0.8


def clients(server: Server) -> Iterator[Finding]:
    """Output buffers, idle time-out, number of connections."""
    yield from _buffers(server)
    yield from _timeout(server)
    yield from _count(server)


def _buffers(server: Server) -> Iterator[Finding]:
    hard = _normal_limit(server.setting("client-output-buffer-limit"))
    if hard == 0:
        yield warning(
            "client-output-buffer-limit normal is 0: no limit",
            "one reader that stands still can fill the memory, and then nothing is admitted",
            "CONFIG SET client-output-buffer-limit 'normal 256mb 128mb 60'",
        )
    elif hard is not None and hard < LARGEST_REPLY:
        yield failure(
            f"client-output-buffer-limit normal is {hard / MIB:.0f} MiB",
            "a producer that fetches large results is cut off again and again",
            "CONFIG SET client-output-buffer-limit 'normal 256mb 128mb 60'",
        )


def _normal_limit(text: str) -> int | None:
    words = text.split()
    if "normal" not in words:
        return None
    return int(words[words.index("normal") + 1])


def _timeout(server: Server) -> Iterator[Finding]:
    quiet_s = int(server.setting("timeout", "0"))
    if 0 < quiet_s < QUIET_S:
        yield warning(
            f"timeout is {quiet_s} s",
            "it cuts off connections that are only quiet; each costs an error and a new one",
            "CONFIG SET timeout 0, or more than a minute",
        )


def _count(server: Server) -> Iterator[Finding]:
    used, most = server.number("connected_clients"), server.number("maxclients")
    if most and used >= HIGH_SHARE * most:
        yield warning(
            f"{used:,} of {most:,} connections are in use",
            "the next process finds no place; a worker has about 8, a producer about 6 a pool",
            "raise maxclients and the limit of open files",
        )
    else:
        yield ok(f"{used:,} connections")
