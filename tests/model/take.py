"""take: which class, which flow, which entry; suspects; call numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.model import fair, places
from tests.model.state import Pool, Request, Worker

PAYLOAD_BYTES = 1024 * 1024
ENDED = 3

Row = list[str | int | float | bytes]


@dataclass
class Take:
    """One call for work, and what became of it."""

    worker: str
    call: int
    slots: int
    wire: int
    count: int
    free: Mapping[str, int]
    granted: list[Request] = field(default_factory=list)
    newer: set[tuple[str, str]] = field(default_factory=set)
    ended: int = 0
    unseen: set[str] = field(default_factory=set)
    passed_bytes: int = 0
    """Of those that are left for newer workers for the first time: they were read."""

    def payload(self) -> int:
        return sum(one.bytes for one in self.granted) + self.passed_bytes

    def room(self, name: str) -> int:
        return self.free[name] - sum(one.class_name == name for one in self.granted)

    def able(self, blocked: set[str]) -> set[str]:
        """Classes of which more may be granted."""
        return {name for name in self.free if self.room(name) > 0} - blocked


def take(pool: Pool, wanted: Take) -> list[list[object]]:
    last, ids = pool.grants.get(wanted.worker, (-1, []))
    if wanted.call < last:
        return [[], []]
    if wanted.call == last:
        rows = [_row(pool, wanted, pool.requests[i]) for i in ids if _still_held(pool, wanted, i)]
        return [list(rows), _bells(pool, wanted)]
    if not pool.paused:
        _grant_all(pool, wanted)
    pool.grants[wanted.worker] = (wanted.call, [one.id for one in wanted.granted])
    pool.expire_at(f"grant:{wanted.worker}", 4 * pool.settings.lease_ms)
    rows = [_row(pool, wanted, one) for one in wanted.granted]
    return [list(rows), _bells(pool, wanted)]


def held(pool: Pool, request_id: str, worker: str, call: int) -> Request | None:
    """The request if it runs under exactly this lease."""
    one = pool.requests.get(request_id)
    return one if one and one.state == "running" and one.lease == (worker, call) else None


def _still_held(pool: Pool, wanted: Take, request_id: str) -> bool:
    return held(pool, request_id, wanted.worker, wanted.call) is not None


def _row(pool: Pool, wanted: Take, one: Request) -> Row:
    return [
        one.id, one.class_name, one.tenant, wanted.call, one.takes, one.attempts, one.crashes,
        one.offset, int(one.solo), one.deadline - pool.now, pool.now - one.admitted, one.head,
        one.body,
    ]  # fmt: skip


def _bells(pool: Pool, wanted: Take) -> list[object]:
    """Backlog by class; a class with some left is rung once for the next worker."""
    backlog: list[object] = []
    for name in wanted.free:
        waiting = [one for one in pool.live(name) if one.takeable or one.place == "suspect"]
        backlog += [name, len(waiting)]
        if not waiting:
            pool.bells.pop(name, None)
        elif name in wanted.unseen or any(one.class_name == name for one in wanted.granted):
            pool.ring(name)
    return backlog


# Choosing -----------------------------------------------------------------------------------------


def _grant_all(pool: Pool, wanted: Take) -> None:
    blocked: set[str] = set()
    _grant_some(pool, wanted, blocked)
    full = wanted.passed_bytes > 0 and wanted.payload() >= PAYLOAD_BYTES
    if full or wanted.ended == ENDED:
        wanted.unseen = wanted.able(blocked)


def _grant_some(pool: Pool, wanted: Take, blocked: set[str]) -> None:
    while len(wanted.granted) < wanted.count and wanted.payload() < PAYLOAD_BYTES:
        able = wanted.able(blocked)
        waiting = fair.contenders(pool)
        chosen, strict = fair.choose(pool, waiting, able)
        if chosen is None:
            return
        one = _candidate(pool, wanted, chosen.state.name)
        if one is None:
            blocked.add(chosen.state.name)
        elif one.wire > wanted.wire:
            _leave_for_newer(pool, wanted, one)
        elif one.deadline <= pool.now:
            places.close(pool, one, "expired", "deadline")
            wanted.ended += 1
            if wanted.ended == ENDED:
                return
        else:
            if not strict:
                fair.bound_windup(pool, waiting, able, chosen)
            expected = _charge(pool, waiting, chosen, strict, one)
            _run(pool, wanted, one)
            fair.note_held(pool, expected)


def _candidate(pool: Pool, wanted: Take, class_name: str) -> Request | None:
    """The oldest suspect that the worker may hold, else the head of the flow of smallest S."""
    for one in pool.live(class_name):
        if (
            one.place == "suspect"
            and one.wire <= wanted.wire
            and may_hold(pool, wanted, one.crashes)
        ):
            return one
    heads: dict[str, Request] = {}
    takeable = [one for one in pool.live(class_name) if one.takeable]
    for one in sorted(takeable, key=lambda one: (one.place == "waiting", one.entry)):
        if (class_name, one.tenant) not in wanted.newer:
            heads.setdefault(one.tenant, one)
    flows = pool.class_state(class_name).flows
    first = min(heads, key=lambda tenant: (fair.start(flows[tenant]), tenant), default=None)
    return None if first is None else heads[first]


def cap(slots: int, crashes: int) -> int:
    """Most requests with so many crashes or more that a worker holds."""
    return max(1, int(slots // 4**crashes))


def may_hold(pool: Pool, wanted: Take, crashes: int) -> bool:
    worker = pool.workers.get(wanted.worker, Worker())
    beside = list(worker.suspects.values())
    if beside and 1 in (cap(wanted.slots, one) for one in [*beside, crashes]):
        return False
    levels = range(1, crashes + 1)
    return all(sum(one >= level for one in beside) < cap(wanted.slots, level) for level in levels)


def _leave_for_newer(pool: Pool, wanted: Take, one: Request) -> None:
    """Keeps its rank; the flow is passed over by this worker for the rest of the call."""
    wanted.passed_bytes += one.bytes if one.place == "waiting" else 0
    one.place = "returned"
    wanted.newer.add((one.class_name, one.tenant))


# Granting -----------------------------------------------------------------------------------------


def _charge(
    pool: Pool, waiting: list[fair.Contender], chosen: fair.Contender, strict: bool, one: Request
) -> float:
    expected = fair.expected(pool, one)
    add = max(0, expected - one.charged)
    fair.charge_class(pool, waiting, chosen, strict, add)
    fair.charge_flow(pool, one, add, in_order=_in_order(pool, one))
    one.charged += add
    one.class_weight = chosen.weight
    return expected


def _in_order(pool: Pool, one: Request) -> bool:
    """Whether the flow had the smallest S of its class: a suspect is served beside the order."""
    if one.place == "suspect":
        return False
    flows = pool.class_state(one.class_name).flows
    mine = fair.start(flows[one.tenant])
    return all(fair.start(tags) >= mine for tags in flows.values() if tags.a is not None)


def _run(pool: Pool, wanted: Take, one: Request) -> None:
    places.leave_queue(pool, one)
    one.state, one.lease = "running", (wanted.worker, wanted.call)
    one.lease_end = pool.now + pool.settings.lease_ms
    one.takes += 1
    one.taken = pool.now
    one.solo = one.crashes > 0 and cap(wanted.slots, one.crashes) == 1
    if one.crashes:
        worker = pool.workers.setdefault(wanted.worker, Worker())
        worker.suspects[one.id] = one.crashes
        pool.expire_at(f"worker:{wanted.worker}", 10 * pool.settings.worker_ttl_ms)
    fair.activate(pool, one.class_name)
    wanted.granted.append(one)
