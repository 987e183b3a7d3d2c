"""Settings beyond what was measured and advised, alone and against the server's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forebay_shared.cli.doctor.facts import Server
from forebay_shared.cli.doctor.findings import Finding, failure, ok, warning
from forebay_shared.cli.doctor.pool_facts import Pool
from forebay_shared.settings import MIB, PoolSettings

BODY_BYTES = MIB
RESULT_BYTES = 16 * MIB
BULK_BYTES = 512 * MIB


def advice(pool: Pool, servers: Sequence[Server]) -> Iterator[Finding]:
    """Sizes within the advised, and nothing asked for that the servers cannot give."""
    if pool.settings is None:
        return
    found = [*_sizes(pool.settings), *_bulk(pool.settings, servers)]
    found += _replicas(pool.settings, servers)
    yield from found or [ok("within the advised")]


def _sizes(settings: PoolSettings) -> Iterator[Finding]:
    for name, value, most in (
        ("body_bytes", settings.body_bytes, BODY_BYTES),
        ("result_bytes", settings.result_bytes, RESULT_BYTES),
    ):
        if value > most:
            yield warning(
                f"{name} is {value / MIB:.1f} MiB",
                "Redis does one thing at a time: a call with so much stops all others for more "
                "than 5 ms",
                f"`forebay settings set {name}={most}`, and pass large inputs by reference",
            )


def _bulk(settings: PoolSettings, servers: Sequence[Server]) -> Iterator[Finding]:
    for server in servers:
        most = int(server.setting("proto-max-bulk-len", str(BULK_BYTES)))
        if most < max(settings.body_bytes, settings.result_bytes):
            yield failure(
                f"proto-max-bulk-len of {server.name} is {most / MIB:.1f} MiB",
                "a body or result that the settings allow cannot be stored",
                "raise it, or lower body_bytes and result_bytes",
            )


def _replicas(settings: PoolSettings, servers: Sequence[Server]) -> Iterator[Finding]:
    wanted = settings.wait_replicas
    for server in servers:
        if wanted > server.number("connected_slaves"):
            yield failure(
                f"wait_replicas is {wanted}, and {server.name} has "
                f"{server.number('connected_slaves')} replicas",
                "no admit and no result is ever confirmed: clients get 503",
                "add replicas, or lower wait_replicas",
            )
