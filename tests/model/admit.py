"""admit: limits, booked returns, shedding."""

from __future__ import annotations

from tests.model import fair, places
from tests.model.limits import LIMITS_MS, Answer, Item, Limit, fits, over, refuse
from tests.model.state import TERMINAL, Pool, Request


def admit(pool: Pool, items: list[Item], inbox: str) -> list[Answer]:
    return [_one(pool, item, inbox) for item in items]


def _one(pool: Pool, item: Item, inbox: str) -> Answer:
    known = _known(pool, item, inbox)
    if known:
        return known
    if pool.class_settings(item.class_name) is None:
        return ["class", item.class_name, 0, ""]
    if pool.draining:
        return ["draining", "pool", 5000, ""]
    spending: dict[str, float] = {}
    answer = _tenant_refusal(pool, item, spending)
    victims: list[Request] = []
    answer = answer or _depth_refusal(pool, item, victims)
    if answer:
        return answer
    store(pool, item, inbox)
    for victim in victims:
        places.close(pool, victim, "shed", "shed")
    _after(pool, item, spending)
    return ["new", item.id, "queued"]


def _known(pool: Pool, item: Item, inbox: str) -> Answer | None:
    if item.id in pool.requests:
        return ["same", item.id, pool.requests[item.id].state]
    value = pool.idempotency.get(f"{item.tenant}:{item.idempotency}")
    if not item.idempotency or value is None:
        return None
    earlier, fingerprint = value
    if fingerprint != item.fingerprint:
        return ["conflict", "", 0, earlier]
    one = pool.requests.get(earlier)
    if one is None or (one.state in TERMINAL and one.result is None):
        return ["gone", "", 0, earlier]
    if one.live:
        _join(one, item, inbox)
    return ["same", earlier, one.state]


def _join(one: Request, item: Item, inbox: str) -> None:
    """Who repeats a live request by its key reads it along."""
    one.detached = one.detached or item.detached
    if inbox:
        one.watch(inbox)


def request_of(item: Item) -> Request:
    """The request as it would be stored; when and where come with its entry."""
    name = f"{item.tenant}:{item.idempotency}" if item.idempotency else ""
    return Request(
        item.id, item.class_name, item.tenant, item.weight, item.timeout, item.wire, item.model,
        item.limit, item.estimate, item.stream, item.progress, item.detached, name, item.head,
        item.body, 0, 0,
    )  # fmt: skip


def store(pool: Pool, item: Item, inbox: str) -> Request:
    pool.last_entry += 1
    one = request_of(item)
    one.entry, one.admitted = pool.last_entry, pool.now
    one.watchers = [inbox] if inbox else []
    pool.requests[item.id] = one
    pool.ledger["accepted"] += 1
    if one.idempotency:
        pool.idempotency[one.idempotency] = (item.id, item.fingerprint)
    fair.activate(pool, item.class_name)
    pool.ring(item.class_name)
    return one


def _after(pool: Pool, item: Item, spending: dict[str, float]) -> None:
    for name, level in spending.items():
        pool.limits.setdefault(item.tenant, {}).update({name: level, f"{name}_at": pool.now})
        pool.expire_at(f"limits:{item.tenant}", LIMITS_MS)
    own = [f"tenant:{item.tenant}:{what}" for what in ("depth", "bytes", "requests", "tokens")]
    for limit in (f"class:{item.class_name}", "pool", *own):
        pool.refused.get(limit, {}).pop(item.fingerprint, None)


# Limits of the tenant -----------------------------------------------------------------------------


def _tenant_refusal(pool: Pool, item: Item, spending: dict[str, float]) -> Answer | None:
    tokens = fair.expected(pool, request_of(item)) if item.tokens_per_minute > 0 else 0
    rates = (("requests", item.per_minute, 1), ("tokens", item.tokens_per_minute, tokens))
    for what, per_minute, cost in rates:
        if per_minute > 0:
            level = _level(pool, item.tenant, what, per_minute)
            need = min(cost, per_minute)
            if need > level:
                # The bucket is a queue of bound 0 whose backlog is what is missing before the cost.
                name, says = f"tenant:{item.tenant}:{what}", f"tenant:{what}"
                limit = Limit(name, says, 0, -level, need, per_minute / 60_000, item.tenant)
                return refuse(pool, limit, item, target=0)
            spending[what] = level - cost
    return _share_refusal(pool, item)


def _level(pool: Pool, tenant: str, what: str, per_minute: float) -> float:
    known = pool.limits.get(tenant, {})
    level, at = known.get(what, per_minute), known.get(f"{what}_at", pool.now)
    return min(per_minute, level + max(0, pool.now - at) * per_minute / 60_000)


def _share_refusal(pool: Pool, item: Item) -> Answer | None:
    """Depth in this class and bytes in all, of requests that were never taken."""
    of_tenant = [one for one in pool.live("", item.tenant) if one.place == "waiting"]
    depth = sum(one.class_name == item.class_name for one in of_tenant)
    held = sum(one.bytes for one in of_tenant if pool.class_settings(one.class_name))
    size = len(item.head) + len(item.body)
    most = item.most_bytes if item.most_bytes > 0 else pool.settings.tenant_bytes
    rate = fair.drain_rate(pool, f"class:{item.class_name}")
    mean = held / depth if depth else size
    shares = [("bytes", most, held, size, rate * mean)]
    if item.most > 0:
        shares.insert(0, ("depth", item.most, depth, 1, rate))
    for what, bound, backlog, cost, empties in shares:
        name = f"tenant:{item.tenant}:{what}"
        limit = Limit(name, f"tenant:{what}", bound, backlog, cost, empties, item.tenant)
        if not fits(pool, limit, item):
            return refuse(pool, limit, item, _target(pool, limit))
    return None


def _target(pool: Pool, limit: Limit) -> float:
    """The backlog at which the next is let in: the depth without the kept share, or less."""
    return min(limit.bound * (1 - pool.settings.kept_share), limit.backlog)


# Depth of class and pool --------------------------------------------------------------------------


def _depth_refusal(pool: Pool, item: Item, victims: list[Request]) -> Answer | None:
    settings, name = pool.class_settings(item.class_name), f"class:{item.class_name}"
    assert settings is not None
    rate = fair.drain_rate(pool, name)
    limit = Limit(name, name, settings.depth, pool.queued(item.class_name), 1, rate)
    if not fits(pool, limit, item):
        return refuse(pool, limit, item, _target(pool, limit))
    rate = fair.drain_rate(pool, "pool")
    limit = Limit("pool", "pool", pool.settings.depth, pool.queued(), 1, rate)
    if fits(pool, limit, item):
        return None
    victims += _victims(pool, item.class_name, int(over(pool, limit, item)))
    return None if victims else refuse(pool, limit, item, _target(pool, limit))


def _victims(pool: Pool, class_name: str, needed: int) -> list[Request]:
    """Never-taken ones of classes below: the lowest class first, of its longest flow the newest."""
    names = [one.name for one in pool.settings.classes]
    chosen: list[Request] = []
    for name in reversed(names[names.index(class_name) + 1 :]):
        flows: dict[str, list[Request]] = {}
        for one in pool.live(name):
            if one.state == "queued" and one.place == "waiting":
                flows.setdefault(one.tenant, []).append(one)
        by_length = sorted(flows, key=lambda tenant: (len(flows[tenant]), tenant), reverse=True)
        for tenant in by_length:
            chosen += reversed(flows[tenant])
    return chosen[:needed] if len(chosen) >= needed and needed <= 8 else []
