"""Foreign hands at random, in the midst of work: afterwards nothing hangs, leaks or vanishes."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from redis import Redis
from tests.model.dump import raw_rows
from tests.shared.library.driver import HeldLibrary, admit, finish
from tests.shared.library.rig import POOL, request_id

from forebay_shared.settings import PoolSettings

SEEDS = range(int(os.environ.get("FOREBAY_SEEDS", "12")))
STEPS = 120
INDEXES = (
    "queue", "waiting", "ready", "starts", "depth", "sizes", "returned", "suspects", "flows",
    "leases", "delayed", "deadlines",
)  # fmt: skip


class Trouble:
    """Three workers at work, and somebody with a console."""

    def __init__(self, client: Redis, seed: int) -> None:
        self.client = client
        self.library = HeldLibrary(client, POOL, PoolSettings())
        self.library.fcall("found", self.library.text)
        self.draw = random.Random(seed)
        self.count = 0
        self.calls = 0
        self.held: list[tuple[str, int, str]] = []
        self.evicts = seed % 2 == 1

    def key(self, name: str) -> str:
        return self.library.prefix + name

    def queues(self) -> list[bytes]:
        keys: list[bytes] = sorted(self.client.keys(self.key("queue:*")))  # type: ignore[type-var]
        return keys

    def state(self, name: str) -> str:
        known: Any = self.client.hget(self.key(f"request:{name}"), "state")
        return known.decode() if known else ""

    # Work -----------------------------------------------------------------------------------------

    def admit(self) -> None:
        for _ in range(self.draw.randrange(1, 5)):
            self.count += 1
            admit(self.library, self.count, self.draw.choice(("ann", "bob")), 90_000_000)

    def take(self) -> None:
        self.calls += 1
        worker, count = f"w{self.draw.randrange(3)}", self.draw.randrange(1, 4)
        row = [worker, self.calls, 16, 1, count, 1, "normal", count]
        for grant in self.library.fcall("take", *row)[0]:
            self.held.append((worker, self.calls, grant[0].decode()))

    def end_one(self) -> None:
        if self.held:
            worker, call, name = self.held.pop(self.draw.randrange(len(self.held)))
            finish(self.library, worker, call, name)

    def release(self) -> None:
        if self.held:
            worker, call, name = self.held.pop(self.draw.randrange(len(self.held)))
            blame = self.draw.choice(("blameless", "attempt", "crashed"))
            row = [name, call, blame, 0, 1, 0, 1, "engine", "{}", ""]
            self.library.fcall("release", worker, 1, *row)

    def sweep(self) -> None:
        for _ in range(self.draw.randrange(1, 8)):
            self.library.now_ms += 1_000
            self.library.fcall("sweep", 0)

    # Foreign hands --------------------------------------------------------------------------------

    def delete_entry(self) -> None:
        for queue in self.queues()[:1]:
            entries: Any = self.client.xrange(queue)
            if entries:
                self.client.xdel(queue, self.draw.choice(entries)[0])

    def delete_stream(self) -> None:
        for queue in self.queues()[:1]:
            self.client.delete(queue)

    def destroy_group(self) -> None:
        for queue in self.queues():
            self.client.xgroup_destroy(queue, "workers")

    def acknowledge(self) -> None:
        """Takes a row from the pending ones, so that its entry belongs to nobody."""
        for queue in self.queues():
            groups: Any = self.client.xinfo_groups(queue)
            if not groups:
                continue
            rows: Any = self.client.xpending_range(queue, "workers", "-", "+", 5)
            for row in rows[:1]:
                self.client.xack(queue, "workers", row["message_id"])

    def add_junk(self) -> None:
        for queue in self.queues()[:1]:
            self.client.xadd(queue, {"junk": "1"})

    def evict_record(self) -> None:
        if self.count:
            name = request_id(self.draw.randrange(1, self.count + 1))
            if self.state(name) in ("queued", "running"):
                self.client.delete(self.key(f"request:{name}"))

    def delete_index(self) -> None:
        self.client.delete(self.key(self.draw.choice(("leases", "bell:normal", "grant:w1"))))

    def disturb(self) -> None:
        """Entries or records, not both: of a request without either nobody knows what it was."""
        either = (self.add_junk, self.acknowledge, self.destroy_group, self.delete_index)
        entries = (self.delete_entry, self.delete_stream, *either)
        self.draw.choice((self.evict_record, *either) if self.evicts else entries)()

    def heal(self) -> None:
        """Time, sweeps, and one worker that ends all that it gets."""
        for _ in range(400):
            self.library.now_ms += 1_000
            self.library.fcall("sweep", 0)
            self.calls += 1
            row = ["healer", self.calls, 100, 1, 50, 1, "normal", 50]
            for grant in self.library.fcall("take", *row)[0]:
                finish(self.library, "healer", self.calls, grant[0].decode())
            if not self.left():
                return

    def left(self) -> list[str]:
        keys = [row[0].decode() for row in raw_rows(self.client, POOL)]
        return sorted(key for key in keys if key.startswith(INDEXES))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_foreign_hands_did_heals(client: Redis, seed: int) -> None:
    """Every accepted request ends once, those whose record was deleted as dead; nothing is left."""
    trouble = Trouble(client, seed)
    work = (trouble.admit, trouble.take, trouble.take, trouble.end_one, trouble.release,
            trouble.sweep)  # fmt: skip
    for _ in range(STEPS):
        trouble.draw.choice(work)()
        if trouble.draw.random() < 0.15:
            trouble.disturb()
    trouble.heal()
    assert trouble.left() == []
    clock: Any = client.hgetall(trouble.key("clock"))
    counts = [b"queued", b"running", b"queued:normal", b"running:normal", b"bytes"]
    assert [clock.get(name, b"0") for name in counts] == [b"0"] * len(counts)
    names = [request_id(n) for n in range(1, trouble.count + 1)]
    states = {name: trouble.state(name) for name in names}
    live = [name for name, state in states.items() if state in ("queued", "running")]
    assert live == []
    ledger: Any = client.hgetall(trouble.key("ledger"))
    ended = sum(int(ledger.get(state, 0)) for state in (b"done", b"failed", b"dead", b"expired"))
    assert int(ledger[b"accepted"]) == trouble.count == ended
