"""What operators do: switch, configure, order, dead letters."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.admit import Item, store
from tests.model.state import Letter, Pool

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


@dataclass(frozen=True)
class Which:
    """Dead letters by what they are; what is empty allows any."""

    reason: str = ""
    class_name: str = ""
    tenant: str = ""
    id: str = ""
    age: float = 0


def letters(pool: Pool, which: Which) -> list[int]:
    """Places of the dead letters that match, newest first; 0 is the oldest."""
    return [at for at, one in reversed(list(enumerate(pool.dead))) if _matches(pool, one, which)]


def _matches(pool: Pool, one: Letter, which: Which) -> bool:
    asked = (which.reason, which.class_name, which.tenant, which.id)
    said = (one.reason, one.class_name, one.tenant, one.id)
    return pool.now - one.at >= which.age and all(
        word in ("", known) for word, known in zip(asked, said, strict=True)
    )


def purge(pool: Pool, which: Which) -> int:
    gone = letters(pool, which)
    pool.dead = [one for at, one in enumerate(pool.dead) if at not in gone]
    return len(gone)


def base(request_id: str) -> str:
    return ".".join(request_id.split(".")[:2])


def last_number(pool: Pool, request_id: str) -> int:
    """The highest number of the request's requeues."""
    own = request_id.removeprefix(base(request_id)).removeprefix(".")
    return max(int(own or 0), pool.requeues.get(base(request_id), 0))


def requeue(pool: Pool, at: int) -> list[object]:
    """Admits the dead letter at place `at` (oldest first) anew, beyond the limits."""
    if not 0 <= at < len(pool.dead):
        return ["none", ""]
    letter = pool.dead[at]
    if not letter.head or not letter.meta:
        return ["payload", ""]
    if pool.class_settings(letter.class_name) is None:
        return ["class", letter.class_name]
    if pool.draining:
        return ["draining", ""]
    number = last_number(pool, letter.id)
    last = pool.requests.get(f"{base(letter.id)}.{number}")
    if last and last.live:
        return ["live", last.id]
    request_id, meta = f"{base(letter.id)}.{number + 1}", letter.meta
    item = Item(
        request_id, letter.class_name, letter.tenant, float(meta["flow_weight"]),
        float(meta["timeout"]),
        int(meta["wire"]), meta["model"], float(meta["limit"]), float(meta["estimate"]),
        int(meta["stream"]), int(meta["progress"]), detached=1, head=letter.head,
        body=letter.body,
    )  # fmt: skip
    store(pool, item, "").retry_of = letter.id
    pool.requeues[base(letter.id)] = number + 1
    pool.expire_at(f"requeues:{base(letter.id)}", 35 * 86_400_000)
    return ["ok", request_id]
