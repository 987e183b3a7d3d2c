"""What a pool remembers, as plain values: the oracle's side of every stored key.

Nothing here is an index. What the server keeps as an index (depth, flows, leases, ready, pending
rows …) the oracle works out from the requests, in `stored.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from forebay_shared.settings import ClassSettings, PoolSettings

TERMINAL = ("done", "failed", "cancelled", "expired", "shed", "dead")
TAKEABLE = ("waiting", "returned")
WATCHERS = 4

Result = tuple[dict[str, object], bytes]


@dataclass
class Request:
    """One accepted request, live or ended."""

    id: str
    class_name: str
    tenant: str
    flow_weight: float
    timeout: float
    wire: int
    model: str
    limit: float
    estimate: float
    stream: int
    progress: int
    detached: int
    idempotency: str
    head: bytes
    body: bytes
    entry: int
    admitted: float
    watchers: list[str] = field(default_factory=list)
    retry_of: str | None = None
    forestalled: bool = False
    state: str = "queued"
    place: str = "waiting"
    lease: tuple[str, int] | None = None
    lease_end: float = 0
    due: float = 0
    class_weight: float = 1
    charged: float = 0
    used: float = 0
    takes: int = 0
    attempts: int = 0
    crashes: int = 0
    solos: int = 0
    solo: bool = False
    offset: int = 0
    output_bytes: int = 0
    prompt: bytes = b""
    chunks: list[tuple[bytes, bytes]] = field(default_factory=list)
    end_mark: bool = False
    taken: float = 0
    ended: float = 0
    reason: str = ""
    result: Result | None = None

    @property
    def bytes(self) -> int:
        return len(self.head) + len(self.body)

    @property
    def deadline(self) -> float:
        return self.admitted + self.timeout

    @property
    def live(self) -> bool:
        return self.state not in TERMINAL

    def watch(self, inbox: str) -> None:
        """At most 4 watch; the oldest goes."""
        if inbox not in self.watchers:
            self.watchers = [*self.watchers, inbox][-WATCHERS:]

    @property
    def takeable(self) -> bool:
        return self.state == "queued" and self.place in TAKEABLE


@dataclass
class Tags:
    """A party's activation tag a (while it waits) and finish tag F."""

    a: float | None = None
    f: float | None = None


@dataclass
class ClassState:
    """A class as a party of the pool, and as the place where its flows meet."""

    name: str
    tags: Tags = field(default_factory=Tags)
    v: float = 0
    flows: dict[str, Tags] = field(default_factory=dict)


@dataclass
class Rate:
    """A drain rate per ms: exponential average, the time it is of, and its first event."""

    value: float
    at: float
    since: float


@dataclass
class Worker:
    """The registry's hash of one worker; `about` is what it told, `suspects` id → crashes."""

    about: dict[str, object] | None = None
    suspects: dict[str, int] = field(default_factory=dict)


@dataclass
class Letter:
    """A dead letter."""

    id: str
    reason: str
    class_name: str
    tenant: str
    at: float
    meta: dict[str, str]
    head: bytes
    body: bytes

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body)


@dataclass
class Pool:
    """Everything of one pool. `now` is the server's clock in ms; the tests move it."""

    settings: PoolSettings
    now: float
    epoch: int = 1
    requests: dict[str, Request] = field(default_factory=dict)
    classes: dict[str, ClassState] = field(default_factory=dict)
    v: float = 0
    last_entry: int = 0
    slots: float = 0
    lmax: float = 0
    most_held: float = 0
    means: dict[str, float] = field(default_factory=dict)
    rates: dict[str, Rate] = field(default_factory=dict)
    booked: dict[str, float] = field(default_factory=dict)
    refused: dict[str, dict[str, float]] = field(default_factory=dict)
    limits: dict[str, dict[str, float]] = field(default_factory=dict)
    usage: dict[str, dict[str, float]] = field(default_factory=dict)
    idempotency: dict[str, tuple[str, str]] = field(default_factory=dict)
    bells: dict[str, int] = field(default_factory=dict)
    control: dict[str, list[str]] = field(default_factory=dict)
    grants: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    registry: dict[str, float] = field(default_factory=dict)
    models: dict[str, float] = field(default_factory=dict)
    inboxes: dict[str, list[str]] = field(default_factory=dict)
    dead: list[Letter] = field(default_factory=list)
    requeues: dict[str, int] = field(default_factory=dict)
    ledger: Counter[str] = field(default_factory=Counter)
    swept: float | None = None
    reclaimed: float | None = None
    quiet: float = 0
    seen: float | None = None
    gaps: int = 0
    paused: bool = False
    draining: bool = False
    expires: dict[str, float] = field(default_factory=dict)
    """Key (without the pool's prefix) → when its TTL ends."""

    def class_settings(self, name: str) -> ClassSettings | None:
        return next((one for one in self.settings.classes if one.name == name), None)

    def class_state(self, name: str) -> ClassState:
        return self.classes.setdefault(name, ClassState(name))

    def flow_tags(self, class_name: str, tenant: str) -> Tags:
        return self.class_state(class_name).flows.setdefault(tenant, Tags())

    def live(self, class_name: str = "", tenant: str = "") -> Iterator[Request]:
        """Live requests, of a class and of a flow where named; as they came, so by entry."""
        for one in self.requests.values():
            named = class_name in ("", one.class_name) and tenant in ("", one.tenant)
            if named and one.live:
                yield one

    def queued(self, class_name: str = "") -> int:
        return sum(one.state == "queued" for one in self.live(class_name))

    def running(self, class_name: str = "") -> int:
        return sum(one.state == "running" for one in self.live(class_name))

    def expire_at(self, key: str, ttl: float) -> None:
        self.expires[key] = self.now + ttl

    def ring(self, class_name: str) -> None:
        self.bells[class_name] = min(64, self.bells.get(class_name, 0) + 1)

    def order(self, worker: str, text: str) -> None:
        self.control.setdefault(worker, []).append(text)
        self.expire_at(f"control:{worker}", 60_000)

    def notify(self, request: Request) -> None:
        """News for those who watch; an inbox that is gone stays gone."""
        for name in request.watchers:
            if name in self.inboxes:
                self.inboxes[name].append(request.id)
