"""Room, and what happens when there is none."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_shared.cli.doctor.facts import Server
from forebay_shared.cli.doctor.findings import Finding, failure, ok, warning
from forebay_shared.eviction import NEVER

FULL_SHARE = 0.85
"""From here on producers refuse, so that results keep room."""
HIGH_SHARE = 0.7
MIB = 1024 * 1024


def memory(server: Server) -> Iterator[Finding]:
    """maxmemory, its policy, and how full it is."""
    yield from _policy(server)
    yield from _room(server)


def _policy(server: Server) -> Iterator[Finding]:
    policy = str(server.info.get("maxmemory_policy", server.setting("maxmemory-policy", NEVER)))
    if policy != NEVER:
        yield failure(
            f"maxmemory-policy is {policy}",
            "an evicted key is a lost request, or a queue that stands still",
            f"CONFIG SET maxmemory-policy {NEVER}, and in its configuration file",
        )
    if evicted := server.number("evicted_keys"):
        yield failure(
            f"{evicted:,} keys have been evicted since the server started",
            "if they were Forebay's, requests are gone: the sweep ends what it finds as lost",
            "see `identities` and the dead letters; give more memory, and the policy "
            f"{NEVER}. The count goes back with a restart or CONFIG RESETSTAT",
        )


def _room(server: Server) -> Iterator[Finding]:
    most, used = server.number("maxmemory"), server.number("used_memory")
    if not most:
        yield warning(
            "maxmemory is not set",
            "producers cannot refuse in time, and the kernel kills Redis when the machine is full",
            "CONFIG SET maxmemory to what this machine can spare, with room for a fork",
        )
        return
    share = used / most
    what = f"{used / MIB:,.0f} of {most / MIB:,.0f} MiB used"
    if share >= FULL_SHARE:
        yield failure(
            what,
            f"from {FULL_SHARE:.0%} on producers refuse new requests with 503",
            "give Redis more memory, or shorten result_ttl_ms; `forebay status` shows what waits",
        )
    elif share >= HIGH_SHARE:
        yield warning(
            what,
            f"from {FULL_SHARE:.0%} on producers refuse new requests with 503",
            "give Redis more memory before that",
        )
    else:
        yield ok(what)
