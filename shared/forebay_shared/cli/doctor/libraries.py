"""Which versions' function libraries are on the servers, and which processes call them.

A process tells its library in the names of its connections, a worker in the registry too. One that
tells none (an older version, a connection that is just being made) may call any: then no library
counts as unused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forebay_shared.cli.doctor.facts import Server
from forebay_shared.cli.doctor.findings import Finding, ok, warning
from forebay_shared.cli.doctor.pool_facts import Pool
from forebay_shared.library import LIBRARY_NAME
from forebay_shared.names import libraries_of

YOUNG_S = 60
"""After a restart processes come back within seconds; an absent one's inbox lives so long."""


@dataclass(slots=True)
class Usage:
    """Who calls which library. `unclear`: why none can be called unused; empty if all told."""

    by_library: dict[str, int] = field(default_factory=dict)
    """Name → living processes."""
    unclear: list[str] = field(default_factory=list)

    def unused(self, server: Server) -> list[str]:
        """Libraries on the server that no living process calls; none while that is unclear."""
        used = {LIBRARY_NAME, *self.by_library}
        return [] if self.unclear else [one for one in server.libraries or [] if one not in used]


def usage(servers: Sequence[Server], pools: Sequence[Pool]) -> Usage:
    """Put together what connections, registry and inboxes tell."""
    found = libraries_of(name for server in servers for name in server.clients or [])
    for pool in pools:
        for worker in pool.living():
            found[worker["id"]] = worker["about"].get("library") or found.get(worker["id"], "")
        for replica in pool.scan.replicas if pool.scan else ():
            found.setdefault(replica, "")
    told = Usage()
    for name in filter(None, found.values()):
        told.by_library[name] = told.by_library.get(name, 0) + 1
    told.unclear = _unclear(servers, pools, [one for one, name in found.items() if not name])
    return told


def _unclear(servers: Sequence[Server], pools: Sequence[Pool], silent: list[str]) -> list[str]:
    told = []
    if silent:
        told.append(f"{len(silent)} processes do not tell theirs, as {silent[0]}")
    if any(server.clients is None or server.libraries is None for server in servers):
        told.append("this user may not call CLIENT LIST or FUNCTION LIST")
    if any(server.number("uptime_in_seconds") < YOUNG_S for server in servers):
        told.append(f"a server has been up for less than {YOUNG_S} s")
    if any(pool.scan is None or not pool.scan.complete for pool in pools):
        told.append("not all pools could be looked through")
    return told


def libraries(server: Server, use: Usage) -> Iterator[Finding]:
    """This version's library is there, and none that nobody calls."""
    if server.libraries is None:
        return
    if LIBRARY_NAME in server.libraries:
        yield ok(f"this version's ({LIBRARY_NAME}) is loaded")
    else:
        yield warning(
            f"this version's library ({LIBRARY_NAME}) is not loaded",
            "a process of this version whose user may not load it cannot start",
            "before a deploy: `forebay doctor --load`; processes that may load it do it themselves",
        )
    if unused := use.unused(server):
        yield warning(
            f"{len(unused)} libraries of other versions are called by no living process: "
            f"{', '.join(unused)}",
            "each takes some memory, and goes into every replica and snapshot",
            "once the deploy is over: `forebay doctor --prune`",
        )
    if missing := sorted(set(use.by_library) - set(server.libraries)):
        yield warning(
            f"processes call libraries that are not loaded: {', '.join(missing)}",
            "they load them at their next call; those whose user may not, fail",
            "`forebay doctor --load` of their version",
        )
