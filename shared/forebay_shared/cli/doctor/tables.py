"""The checks, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from forebay_shared.cli.doctor.advice import advice
from forebay_shared.cli.doctor.clients import clients
from forebay_shared.cli.doctor.clock import clock
from forebay_shared.cli.doctor.facts import Server
from forebay_shared.cli.doctor.features import features
from forebay_shared.cli.doctor.findings import Finding
from forebay_shared.cli.doctor.identities import identities, sweeps
from forebay_shared.cli.doctor.layout import layout
from forebay_shared.cli.doctor.leaks import leaks
from forebay_shared.cli.doctor.libraries import libraries, usage
from forebay_shared.cli.doctor.memory import memory
from forebay_shared.cli.doctor.persistence import persistence
from forebay_shared.cli.doctor.pool_facts import Pool
from forebay_shared.cli.doctor.replication import replication
from forebay_shared.cli.doctor.workers import workers

OF_SERVERS: dict[str, Callable[[Server], Iterable[Finding]]] = {
    "features": features,
    "persistence": persistence,
    "memory": memory,
    "clock": clock,
    "clients": clients,
    "replication": replication,
}
OF_POOLS: dict[str, Callable[[Pool], Iterable[Finding]]] = {
    "layout": layout,
    "identities": identities,
    "sweeps": sweeps,
    "leaks": leaks,
    "workers": workers,
}


def examine(servers: Sequence[Server], pools: Sequence[Pool]) -> list[Finding]:
    """Everything that the checks say."""
    use = usage(servers, pools)
    found: list[Finding] = []
    for server in servers:
        for name, check in OF_SERVERS.items():
            found += _named(name, server.name, check(server))
        found += _named("libraries", server.name, libraries(server, use))
    for pool in pools:
        about = f"pool {pool.name}"
        for name, judge in OF_POOLS.items():
            found += _named(name, about, judge(pool))
        found += _named("settings", about, advice(pool, servers))
    return found


def _named(check: str, about: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    return (replace(one, check=check, about=about) for one in findings)
