"""What of the accepted requests survives this server's end."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_shared.cli.doctor.facts import Server
from forebay_shared.cli.doctor.findings import Finding, failure, ok, warning

SEE = "docs/guarantees.md says what each setting keeps"


def persistence(server: Server) -> Iterator[Finding]:
    """The append-only file, how often it is synced, and whether it can be written."""
    yield from _append_only(server) if server.number("aof_enabled") else _no_append_only(server)
    yield from _snapshots(server)


def _append_only(server: Server) -> Iterator[Finding]:
    sync = server.setting("appendfsync", "unknown")
    yield ok(f"append-only file on, appendfsync {sync}")
    if sync == "no":
        yield warning(
            "appendfsync is no",
            "what the last half minute accepted is lost when the machine stops",
            f"CONFIG SET appendfsync everysec, or always; {SEE}",
        )
    if server.info.get("aof_last_write_status", "ok") != "ok":
        yield failure(
            "the last write to the append-only file failed",
            "Redis takes no writes until it succeeds: nothing is admitted, no result is stored",
            "free space on its disk, or mend the disk; Redis' own log names the error",
        )
    if server.info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield warning(
            "the last rewrite of the append-only file failed",
            "the file grows until the disk is full",
            "free space and memory for a fork, then BGREWRITEAOF",
        )
    yield from _slow_sync(server, sync)


def _slow_sync(server: Server, sync: str) -> Iterator[Finding]:
    if sync == "everysec" and (delayed := server.number("aof_delayed_fsync")):
        yield warning(
            f"the disk was too slow to sync {delayed:,} times since the server started",
            "what was answered during such a sync, up to 2 s, dies with the Redis process",
            f"a faster disk for the append-only file, or appendfsync always; {SEE}",
        )
    if server.setting("no-appendfsync-on-rewrite") == "yes":
        yield warning(
            "no-appendfsync-on-rewrite is yes",
            "while the file is rewritten nothing is synced, whatever appendfsync says",
            "CONFIG SET no-appendfsync-on-rewrite no",
        )


def _no_append_only(server: Server) -> Iterator[Finding]:
    snapshots = server.setting("save", "unknown")
    kept = "what came after the last snapshot" if snapshots else "everything"
    yield failure(
        "the append-only file is off",
        f"when this Redis ends, {kept} is lost, accepted requests and results",
        f"CONFIG SET appendonly yes, and in its configuration file; {SEE}",
    )


def _snapshots(server: Server) -> Iterator[Finding]:
    failed = server.info.get("rdb_last_bgsave_status", "ok") != "ok"
    if failed and server.setting("stop-writes-on-bgsave-error", "yes") == "yes":
        yield failure(
            "the last snapshot failed and stop-writes-on-bgsave-error is yes",
            "Redis takes no writes until one succeeds: producers answer 503, results wait",
            "free space and memory for a fork, then BGSAVE; or CONFIG SET save '' where there is "
            "an append-only file",
        )
