"""Settings of a pool, stored in Redis so that all its processes obey the same ones.

Each number stands with its unit and meaning; the relations between them are asserted at the end of
the model, each with its reason. The function library reads the same names.
"""

from __future__ import annotations

import re
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

POOL_NAME = re.compile(r"[a-z0-9-]{1,32}")
CLASS_NAME = re.compile(r"[a-z]{1,16}")
TENANT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

MIB = 1024 * 1024


class _Frozen(BaseModel):
    # Stored settings may come from a newer version; what people type is checked strictly.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class ClassSettings(_Frozen):
    """One priority class. Its place in the list is its rank: first is highest."""

    name: str = Field(pattern=r"^[a-z]{1,16}$")
    weight: float = Field(default=1.0, gt=0)
    """Share of the pool's tokens relative to the other waiting classes; unused when strict."""
    strict: bool = False
    """Goes first, as long as it stays under `cap`."""
    cap: float = Field(default=0.04, gt=0, lt=1)
    """Highest share of a strict class while others wait."""
    depth: int = Field(default=1_000, ge=1)
    """Most requests queued at once."""


class CostSettings(_Frozen):
    """Tokens that a token costs."""

    prompt: float = Field(default=1.0, ge=0)
    cached: float = Field(default=0.1, ge=0)
    output: float = Field(default=2.0, ge=0)


def _default_classes() -> tuple[ClassSettings, ...]:
    return (
        ClassSettings(name="critical", strict=True, cap=0.04),
        ClassSettings(name="high", weight=8),
        ClassSettings(name="normal", weight=4),
        ClassSettings(name="low", weight=2),
        ClassSettings(name="background", weight=1),
    )


class PoolSettings(_Frozen):
    """What all processes of a pool obey."""

    classes: tuple[ClassSettings, ...] = Field(default_factory=_default_classes, min_length=1)
    cost: CostSettings = CostSettings()

    lease_ms: int = Field(default=15_000, ge=300)
    """A worker's right to a request ends so long after its last renewal."""
    renew_ms: int = Field(default=5_000, ge=50)
    """Leases are renewed this often."""
    sweep_ms: int = Field(default=1_000, ge=50)
    """Deadlines, due retries and bells are looked at this often, by whichever process comes."""
    reclaim_ms: int = Field(default=5_000, ge=50)
    """Expired leases are reclaimed this often."""
    worker_ttl_ms: int = Field(default=30_000, ge=1_000)
    """A worker that has not registered for so long is forgotten."""

    depth: int = Field(default=10_000, ge=1)
    """Most requests queued in the pool."""
    tenant_bytes: int = Field(default=64 * MIB, ge=1)
    """Most bytes of never-taken requests of one tenant."""
    kept_share: float = Field(default=0.2, ge=0, lt=1)
    """Share of a depth kept for those who were refused and told when to return."""
    retry_clamp_ms: int = Field(default=60_000, ge=1_000)
    """Longest Retry-After; official SDKs ignore longer ones."""

    body_bytes: int = Field(default=MIB, ge=1)
    """Longest body of a request."""
    result_bytes: int = Field(default=16 * MIB, ge=1)
    """Most bytes of result and output of one request together."""

    attempts: int = Field(default=3, ge=1)
    """The engine may answer with an error so often."""
    backoff_ms: int = Field(default=1_000, ge=1)
    """Wait before the second attempt; doubles with each, ± `backoff_jitter`."""
    backoff_jitter: float = Field(default=0.2, ge=0, lt=1)
    solo_crashes: int = Field(default=2, ge=1)
    """A request that crashed a worker alone so often is a dead letter (`crash_loop`)."""

    result_ttl_ms: int = Field(default=3_600_000, ge=1_000)
    """A terminal record lives so long, from the terminal moment."""
    tombstone_ms: int = Field(default=600_000, ge=1_000)
    """The request's own record lives so much longer than its result."""
    idempotency_ttl_ms: int = Field(default=86_400_000, ge=1_000)
    """An Idempotency-Key is remembered so long after `done` or `failed`."""
    known_model_ms: int = Field(default=86_400_000, ge=1_000)
    """A model stays known so long after its last worker left."""

    dead_count: int = Field(default=10_000, ge=1)
    dead_bytes: int = Field(default=64 * MIB, ge=1)
    """Bounds of the dead letters; the oldest go first."""

    wait_replicas: int = Field(default=0, ge=0)
    """A request counts as accepted, and its end as written, once so many replicas have it."""
    wait_ms: int = Field(default=1_000, ge=1, le=4_000)
    """Longest wait for them at a time; clients of Redis give up after 5 s."""

    sync_deadline_ms: int = Field(default=600_000, ge=1)
    async_deadline_ms: int = Field(default=86_400_000, ge=1)
    """Deadlines where the client names none."""

    @model_validator(mode="after")
    def _relations(self) -> Self:
        # One lost renewal and one slow one must not cost the lease.
        _require(self.lease_ms >= 3 * self.renew_ms, "lease_ms must be at least 3 × renew_ms")
        # A dead worker's requests run again within lease + sweep.
        _require(self.reclaim_ms <= self.lease_ms, "reclaim_ms must not be above lease_ms")
        _require(self.sweep_ms <= self.reclaim_ms, "sweep_ms must not be above reclaim_ms")
        # Sweeps that are further apart look like an outage, which delays recovery.
        _require(self.lease_ms >= 3 * self.sweep_ms, "lease_ms must be at least 3 × sweep_ms")
        # A worker whose leases still run must not be forgotten.
        _require(self.worker_ttl_ms >= self.lease_ms, "worker_ttl_ms must be at least lease_ms")
        # A result must be able to hold what a body asks for, plus its head.
        _require(self.result_bytes >= 64 * 1024, "result_bytes must be at least 64 KiB")
        names = [one.name for one in self.classes]
        _require(len(set(names)) == len(names), "class names must differ")
        return self

    def class_names(self) -> list[str]:
        """Names of the classes, highest first."""
        return [one.name for one in self.classes]

    def stored(self) -> str:
        """The JSON that the library reads."""
        return self.model_dump_json()


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
