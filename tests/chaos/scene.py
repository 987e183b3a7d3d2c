"""What a run is made of: which engines, how many processes, how long a lease is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from forebay_shared.settings import PoolSettings

EngineKind = Literal["sim", "vllm"]
WORKERS = ("w1", "w2", "w3", "w4")
PRODUCERS = ("p1", "p2")


def _settings(lease_ms: int) -> PoolSettings:
    """Short leases, with the relations of the defaults; results outlive every run."""
    return PoolSettings(
        lease_ms=lease_ms,
        renew_ms=lease_ms // 4,
        sweep_ms=250,
        reclaim_ms=500,
        worker_ttl_ms=2 * lease_ms,
        backoff_ms=100,
        result_ttl_ms=86_400_000,
        classes=PoolSettings().classes,
    )


@dataclass(frozen=True, slots=True)
class Scene:
    """`beside`: worker → engine process; other workers have a simulated engine inside.

    `slots` of a worker are so many that what a dead one held finds room at once: of requests that
    have crashed a worker holds a quarter of its slots at most.
    """

    engine: EngineKind
    model: str
    settings: PoolSettings
    beside: Mapping[str, str]
    slots: int
    clients: int
    settle_s: float
    drain_s: float

    @property
    def engines(self) -> list[str]:
        return sorted(set(self.beside.values()))

    @property
    def roles(self) -> dict[str, Sequence[str]]:
        """Names of the processes by what they are."""
        return {"worker": WORKERS, "producer": PRODUCERS, "engine": self.engines}

    @property
    def lease_s(self) -> float:
        return self.settings.lease_ms / 1000


SCENES: Mapping[EngineKind, Scene] = {
    "sim": Scene(
        engine="sim",
        model="sim",
        settings=_settings(2_000),
        beside={"w4": "e1"},
        slots=32,
        clients=20,
        settle_s=45.0,
        drain_s=20.0,
    ),
    # Real vLLM on a few cores: its workers need a lease that a busy machine can keep.
    "vllm": Scene(
        engine="vllm",
        model="tiny",
        settings=_settings(6_000),
        beside={"w1": "e1", "w2": "e2", "w3": "e1", "w4": "e2"},
        slots=8,
        clients=8,
        settle_s=90.0,
        drain_s=60.0,
    ),
}
