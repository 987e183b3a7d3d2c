"""What a worker process is told at its start."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SimOptions:
    """The simulated engine: `speed` divides its times; see the profiles for its rates."""

    profile: str = "default"
    models: tuple[str, ...] = ("sim",)
    seed: int = 0
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """One worker process.

    `engine`: `sim` or the base URL of an OpenAI-compatible server. `slots`: most requests at once,
    None to learn it. `classes`: those that it serves, empty for all. `recheck_s`: an engine that
    failed is asked for its health after so long, to tell a crash from an error. `wedged_s`: the
    calls of an engine that hangs are closed after so long, or two leases if that is longer.
    """

    redis: str
    engine: str = "sim"
    engine_key: str | None = field(default=None, repr=False)
    pool: str = "default"
    slots: int | None = None
    classes: tuple[str, ...] = ()
    admin: Address | None = None
    grace_s: float = 25.0
    recheck_s: float = 2.0
    wedged_s: float = 30.0
    sim: SimOptions = field(default_factory=SimOptions)
