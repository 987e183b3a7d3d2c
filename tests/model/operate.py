"""What operators do: switch, configure, order, requeue."""

from __future__ import annotations

from tests.model.admit import Item, store
from tests.model.state import Pool

from forebay_shared.settings import PoolSettings


def switch(pool: Pool, paused: bool | None, draining: bool | None) -> str:
    pool.paused = pool.paused if paused is None else paused
    pool.draining = pool.draining if draining is None else draining
    if paused is False:
        ring_waiting(pool)
    return "ok"


def ring_waiting(pool: Pool) -> None:
    for one in pool.settings.classes:
        if pool.class_state(one.name).tags.a is not None:
            pool.ring(one.name)


def configure(pool: Pool, settings: PoolSettings, epoch: int) -> list[object]:
    if epoch != pool.epoch:
        return ["changed", pool.epoch]
    stay = {one.name for one in settings.classes}
    for one in pool.settings.classes:
        if one.name not in stay and any(pool.live(one.name)):
            return ["used", one.name]
    ring_waiting(pool)
    pool.settings, pool.epoch = settings, epoch + 1
    return ["ok", pool.epoch]


def order(pool: Pool, worker: str, text: str) -> str:
    pool.order(worker, text)
    return "ok"


def requeue(pool: Pool, at: int, request_id: str) -> str:
    """Admits the dead letter at place `at` (oldest first) anew, beyond the limits."""
    if not 0 <= at < len(pool.dead):
        return "none"
    letter = pool.dead[at]
    if not letter.head or not letter.meta:
        return "payload"
    if request_id in pool.requests:
        return "exists"
    if pool.class_settings(letter.class_name) is None:
        return "class"
    meta = letter.meta
    item = Item(
        request_id, letter.class_name, letter.tenant, float(meta["flow_weight"]),
        float(meta["timeout"]),
        int(meta["wire"]), meta["model"], float(meta["limit"]), float(meta["estimate"]),
        int(meta["stream"]), int(meta["progress"]), detached=1, head=letter.head,
        body=letter.body,
    )  # fmt: skip
    store(pool, item, "").retry_of = letter.id
    return "ok"
