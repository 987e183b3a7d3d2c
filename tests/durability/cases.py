"""The settings of Redis whose promise is measured, one case each."""

from __future__ import annotations

from dataclasses import dataclass

AOF = ("--appendonly", "yes", "--auto-aof-rewrite-percentage", "0")
ALWAYS = (*AOF, "--appendfsync", "always")
EVERYSEC = (*AOF, "--appendfsync", "everysec")
NO = (*AOF, "--appendfsync", "no")


@dataclass(frozen=True, slots=True)
class Case:
    """One setting. `promises`: nothing acknowledged may be lost, else the run is bad.

    `in_memory`: the server's folder is in /dev/shm, where a sync takes no time. `sync_ms`: each
    sync takes so long, as on a disk that others use too. `power`: the machine loses power with the
    process, so that of the append-only file only what was synced is left.
    """

    name: str
    options: tuple[str, ...]
    kills: int
    promises: bool = False
    in_memory: bool = False
    sync_ms: int = 0
    power: bool = False

    @property
    def is_preloaded(self) -> bool:
        """Whether it takes a server whose syncs are slowed and noted."""
        return self.power or self.sync_ms > 0


CASES = (
    Case("always", ALWAYS, kills=12, promises=True),
    Case("everysec, in memory", EVERYSEC, kills=4, in_memory=True),
    Case("everysec, on disk", EVERYSEC, kills=4),
    Case("everysec, slow disk", EVERYSEC, kills=4, sync_ms=1_500),
    Case("no", NO, kills=3),
    Case("snapshots alone", ("--save", "1 1"), kills=2),
    Case("nothing", (), kills=1),
    Case("always, power lost", ALWAYS, kills=6, promises=True, power=True),
    Case("everysec, power lost", EVERYSEC, kills=4, power=True),
    Case("no, power lost", NO, kills=2, power=True),
)
