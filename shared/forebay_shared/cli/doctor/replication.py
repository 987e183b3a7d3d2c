"""Whether this is the primary, and how much a failover may lose."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_shared.cli.doctor.facts import Server
from forebay_shared.cli.doctor.findings import Finding, failure, ok, warning

LAG_S = 10


def replication(server: Server) -> Iterator[Finding]:
    """Role, replicas, and the number of them that a write wants."""
    if server.info.get("role", "master") != "master":
        yield failure(
            "this server is a replica",
            "it takes no writes",
            "name the primary, or use a redis+sentinel:// URL that finds it",
        )
        return
    replicas, wanted = server.number("connected_slaves"), _wanted(server)
    yield from _wants(replicas, wanted, server)
    yield from _lags(server)


def _wanted(server: Server) -> int:
    return int(server.setting("min-replicas-to-write", "0"))


def _wants(replicas: int, wanted: int, server: Server) -> Iterator[Finding]:
    good = int(server.info.get("min_slaves_good_slaves", replicas))
    if wanted and good < wanted:
        yield failure(
            f"min-replicas-to-write is {wanted}, and {good} are there in time",
            "Redis takes no writes: nothing is admitted, no result is stored",
            "bring the replicas back, or lower min-replicas-to-write",
        )
    elif replicas and not wanted:
        yield warning(
            f"{replicas} replicas, and min-replicas-to-write is 0",
            "a primary that lost sight of them goes on accepting what a failover throws away",
            "CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 10; to lose nothing at a "
            "failover set wait_replicas in `forebay settings`",
        )
    else:
        yield ok(f"primary with {replicas} replicas" if replicas else "no replica")


def _lags(server: Server) -> Iterator[Finding]:
    rows = [row for name, row in server.info.items() if _is_replica(name, row)]
    late = [row for row in rows if row.get("state") != "online" or int(row.get("lag", 0)) > LAG_S]
    if late:
        yield warning(
            f"{len(late)} of {len(rows)} replicas are behind",
            "what they have not yet is lost if one of them is promoted",
            "see the network and the load of the replicas",
        )


def _is_replica(name: str, row: object) -> bool:
    return name.startswith("slave") and name[5:].isdecimal() and isinstance(row, dict)
