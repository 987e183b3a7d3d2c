"""Random sequences of all functions, against the oracle: after each step the whole stored state
is what the oracle says.

Calls come from several workers and replicas; they are repeated, come late (old call numbers, old
leases) or are lost (made, the answer ignored, made again). FOREBAY_EXAMPLES sets how many
sequences are tried, FOREBAY_SHRINK asks for a short one when they fail (that takes minutes).
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from redis import Redis
from tests.model.hold import Emission, Ending, Held, Release
from tests.model.limits import Item
from tests.model.operate import Which
from tests.model.take import Take
from tests.shared.library.rig import Rig

from forebay_shared.settings import ClassSettings, PoolSettings

EXAMPLES = int(os.environ.get("FOREBAY_EXAMPLES", "80"))
PHASES = (Phase.generate, Phase.shrink) if "FOREBAY_SHRINK" in os.environ else (Phase.generate,)
STEPS = 50
SURVIVAL_TICKS = 60
"""In so many ticks, which are 12 leases, whatever is left comes to its end."""

CLASSES = ("critical", "high", "low")
TENANTS = ("ann", "bob", "cy")
WORKERS = ("w1", "w2", "w3")
INBOXES = ("", "r1.1", "r1.2", "r2.1", "r3.1", "r4.1", "r5.1")

usages = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
bodies = st.binary(max_size=40)
resumes = st.one_of(st.binary(max_size=5), st.sampled_from([b"1,2;3", b";4", b"5;"]))
chunk_lists = st.lists(st.tuples(st.binary(max_size=30), resumes), max_size=3)


def pool_settings(**changed: Any) -> PoolSettings:
    """Small numbers, so that every limit is met; long times, so that no real TTL ends."""
    values: dict[str, Any] = {
        "classes": (
            ClassSettings(name="critical", strict=True, cap=0.2, depth=5),
            ClassSettings(name="high", weight=4, depth=6),
            ClassSettings(name="low", weight=1, depth=7),
        ),
        "sweep_ms": 20_000, "reclaim_ms": 60_000, "lease_ms": 100_000, "renew_ms": 30_000,
        "worker_ttl_ms": 300_000, "backoff_ms": 30_000, "result_ttl_ms": 400_000,
        "tombstone_ms": 200_000, "idempotency_ttl_ms": 900_000, "known_model_ms": 1_000_000,
        "depth": 9, "tenant_bytes": 200, "result_bytes": 150, "dead_count": 3,
    }  # fmt: skip
    return PoolSettings().model_copy(update=values | changed)


class Machine(RuleBasedStateMachine):
    """One pool, three workers, five replicas, and an operator."""

    client: Redis
    steps = 0
    reached: ClassVar[Counter[str]] = Counter()

    @initialize(kept=st.sampled_from([0.0, 0.2, 0.5]), attempts=st.integers(1, 3))
    def found(self, kept: float, attempts: int) -> None:
        self.settings = pool_settings(kept_share=kept, attempts=attempts)
        self.client.flushall()
        self.rig = Rig(self.client, self.settings)
        self.ids: list[str] = []
        self.calls = dict.fromkeys(WORKERS, 0)
        self.leases: list[tuple[str, str, int]] = []
        self.made: list[Any] = []
        self.behind_ms = 0
        self.rig.check()

    def do(self, call: Any) -> Any:
        """Makes a call, remembers it for a repeat, and compares all that is stored."""
        Machine.steps += 1
        self.made.append(call)
        note(f"{call}".replace(f"{self.rig}", ""))
        answer = call()
        self.rig.check()
        return answer

    def teardown(self) -> None:
        self.survive()
        oracle = self.rig.oracle
        Machine.reached += oracle.ledger
        Machine.reached["taken"] += sum(one.takes for one in oracle.requests.values())
        Machine.reached["crashed"] += sum(one.crashes for one in oracle.requests.values())

    def survive(self) -> None:
        """All others have died, each behind whatever step was its last: one worker ends it all.

        As much later as the clock has gone back.
        """
        rig, tick_ms = self.rig, self.settings.sweep_ms
        rig.switch(False, False)
        for call in range(1, SURVIVAL_TICKS + self.behind_ms // tick_ms):
            if not any(rig.oracle.live()):
                break
            rig.pass_time(tick_ms)
            again = rig.sweep()
            while again and again[-1]:
                again = rig.sweep(forced=True)
            known = [one.name for one in rig.oracle.settings.classes]
            wanted = Take("survivor", call, 64, 2, 100, dict.fromkeys(known, 100))
            rows = rig.take(wanted)[0]
            head: dict[str, object] = {"state": "done", "status": 200}
            ends = [Ending(row[0].decode(), call, "done", "", (1, 0, 1), head, b"") for row in rows]
            rig.finish("survivor", ends)
        rig.check()
        assert not [one.id for one in rig.oracle.live()]

    # Producers ------------------------------------------------------------------------------------

    @rule(data=st.data(), count=st.integers(1, 3), inbox=st.sampled_from(INBOXES))
    def admit(self, data: st.DataObject, count: int, inbox: str) -> None:
        items = [self.item(data) for _ in range(count)]
        self.do(partial(self.rig.admit, items, inbox))

    def item(self, data: st.DataObject) -> Item:
        draw = data.draw
        again = bool(self.ids) and draw(st.integers(0, 9)) == 0
        request_id = draw(st.sampled_from(self.ids)) if again else f"rig.{len(self.ids):026d}"
        self.ids += [] if again else [request_id]
        keyed = draw(st.integers(0, 3)) == 0
        return Item(
            request_id,
            draw(st.sampled_from([*CLASSES, "high", "low", "none"])),
            draw(st.sampled_from(TENANTS)),
            weight=draw(st.sampled_from([1, 2, 0.5])),
            timeout=draw(st.sampled_from([5_000, 150_000, 2_000_000])),
            wire=draw(st.sampled_from([1, 1, 1, 2])),
            model=draw(st.sampled_from(["m", "n"])),
            limit=draw(st.sampled_from([-1, 0, 10, 500])),
            estimate=draw(st.sampled_from([-1, -1, 7])),
            stream=draw(st.integers(0, 1)),
            detached=draw(st.sampled_from([0, 0, 1])),
            idempotency=draw(st.sampled_from("kl")) if keyed else "",
            fingerprint=draw(st.sampled_from(["", "f", "g", "h"])),
            most=draw(st.sampled_from([0, 0, 2])),
            most_bytes=draw(st.sampled_from([0, 0, 60])),
            per_minute=draw(st.sampled_from([0, 0, 0, 2])),
            tokens_per_minute=draw(st.sampled_from([0, 0, 0, 700])),
            body=draw(bodies),
        )

    @rule(
        names=st.lists(st.sampled_from(CLASSES), min_size=2, max_size=5),
        tenant=st.sampled_from(TENANTS),
        timeout=st.sampled_from([150_000, 2_000_000]),
        wire=st.sampled_from([1, 1, 2]),
    )
    def admit_plainly(self, names: list[str], tenant: str, timeout: int, wire: int) -> None:
        """Requests that nothing but depth can refuse."""
        first = len(self.ids)
        self.ids += [f"rig.{number:026d}" for number in range(first, first + len(names))]
        items = [
            Item(request_id, name, tenant, timeout=timeout, wire=wire, stream=1, fingerprint="f")
            for request_id, name in zip(self.ids[first:], names, strict=True)
        ]
        self.do(partial(self.rig.admit, items, "r1.1"))

    @rule(data=st.data(), inbox=st.sampled_from(INBOXES))
    def reply(self, data: st.DataObject, inbox: str) -> None:
        wanted = st.tuples(self.any_id(), st.integers(-1, 4))
        self.do(partial(self.rig.reply, inbox, data.draw(st.lists(wanted, max_size=3))))

    @rule(
        data=st.data(),
        tenant=st.sampled_from(["", "", *TENANTS]),
        inbox=st.sampled_from(["", *INBOXES]),
        in_doubt=st.booleans(),
    )
    def cancel(self, data: st.DataObject, tenant: str, inbox: str, in_doubt: bool) -> None:
        """By an owner, by a reader that leaves, or by who does not know whether it was admitted."""
        coming = f"rig.{len(self.ids):026d}"
        request_id = data.draw(st.one_of(self.any_id(), st.just(coming)))
        self.do(partial(self.rig.cancel, request_id, tenant, inbox, in_doubt))

    @rule(data=st.data(), tenant=st.sampled_from(["", "", *TENANTS]))
    def show(self, data: st.DataObject, tenant: str) -> None:
        self.do(partial(self.rig.show, data.draw(self.any_id()), tenant))

    def any_id(self) -> st.SearchStrategy[str]:
        return st.sampled_from([*self.ids[-20:], "rig.unknown"])

    @rule(name=st.sampled_from(INBOXES[1:]))
    def open_inbox(self, name: str) -> None:
        self.do(partial(self.rig.open_inbox, name))

    @rule(name=st.sampled_from(INBOXES[1:]))
    def lose_inbox(self, name: str) -> None:
        self.do(partial(self.rig.lose_inbox, name))

    # Workers --------------------------------------------------------------------------------------

    def wanted(self, data: st.DataObject) -> Take:
        draw = data.draw
        worker = draw(st.sampled_from(WORKERS))
        step = draw(st.sampled_from([1, 1, 1, 1, 0, -1]))
        call = max(0, self.calls[worker] + step)
        self.calls[worker] = max(call, self.calls[worker])
        served = draw(st.lists(st.sampled_from([*CLASSES, "none"]), unique=True, max_size=4))
        free = {name: draw(st.integers(0, 3)) for name in served or CLASSES}
        slots, count = draw(st.sampled_from([1, 4, 16])), draw(st.integers(0, 5))
        return Take(worker, call, slots, draw(st.sampled_from([1, 2, 2])), count, free)

    def learn(self, worker: str, answer: list[Any]) -> None:
        self.leases += [(row[0].decode(), worker, row[3]) for row in answer[0]]

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        wanted = self.wanted(data)
        self.learn(wanted.worker, self.do(partial(take_anew, self.rig.take, wanted)))

    @rule(data=st.data())
    def take_all(self, data: st.DataObject) -> None:
        """A worker of the newest version with room for all."""
        worker = data.draw(st.sampled_from(WORKERS))
        self.calls[worker] += 1
        wanted = Take(worker, self.calls[worker], 16, 2, 5, dict.fromkeys(CLASSES, 4))
        self.learn(worker, self.do(partial(take_anew, self.rig.take, wanted)))

    def lease(self, data: st.DataObject) -> tuple[str, str, int]:
        """Mostly one that is held, else any that ever was, or none that ever was."""
        held = [lease for lease in self.leases if self.runs(lease)]
        if not held and data.draw(st.integers(0, 3)):
            held = self.feed(data.draw(st.sampled_from(WORKERS)))
        ever = [*self.leases[-8:], ("rig.unknown", "w1", 1)]
        return data.draw(st.sampled_from(held * 4 + ever if held else ever))

    def feed(self, worker: str) -> list[tuple[str, str, int]]:
        """Gives a worker something to do, so that what it may do with it is met more often."""
        self.ids.append(f"rig.{len(self.ids):026d}")
        item = Item(self.ids[-1], "high", "ann", stream=1, wire=1)
        self.do(partial(self.rig.admit, [item], "r1.1"))
        self.calls[worker] += 1
        wanted = Take(worker, self.calls[worker], 16, 2, 5, dict.fromkeys(CLASSES, 4))
        self.learn(worker, self.do(partial(take_anew, self.rig.take, wanted)))
        return [lease for lease in self.leases if self.runs(lease)]

    def runs(self, lease: tuple[str, str, int]) -> bool:
        one = self.rig.oracle.requests.get(lease[0])
        return one is not None and one.state == "running" and one.lease == lease[1:]

    def offset(self, data: st.DataObject, request_id: str) -> int:
        one = self.rig.oracle.requests.get(request_id)
        known = one.offset if one else 0
        return max(0, known + data.draw(st.sampled_from([0, 0, 0, -1, -2, 1])))

    @rule(data=st.data(), usage=usages)
    def renew(self, data: st.DataObject, usage: tuple[int, int, int]) -> None:
        request_id, worker, call = self.lease(data)
        beside = [Held(one[0], one[2]) for one in self.leases[-3:]]
        self.do(partial(self.rig.renew, worker, [Held(request_id, call, usage), *beside]))

    @rule(data=st.data(), usage=usages, chunks=chunk_lists)
    def emit(self, data: st.DataObject, usage: tuple[int, int, int], chunks: list[Any]) -> None:
        request_id, worker, call = self.lease(data)
        one = Emission(request_id, call, self.offset(data, request_id), usage, tuple(chunks))
        self.do(partial(self.rig.emit, worker, [one]))

    def ending(self, data: st.DataObject) -> tuple[str, Ending]:
        request_id, worker, call = self.lease(data)
        state = data.draw(st.sampled_from(["done", "done", "failed"]))
        size = data.draw(st.sampled_from([0, 20, 100, 200]))
        offset, chunks = self.offset(data, request_id), tuple(data.draw(chunk_lists))
        status = 200 if state == "done" else data.draw(st.sampled_from([400, 500]))
        head = {"state": state, "status": status}
        usage = data.draw(usages)
        return worker, Ending(request_id, call, state, "", usage, head, b"x" * size, offset, chunks)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        worker, one = self.ending(data)
        self.do(partial(self.rig.finish, worker, [one]))

    @rule(data=st.data())
    def finish_take(self, data: st.DataObject) -> None:
        wanted = self.wanted(data)
        worker, one = self.ending(data)
        endings = [one] if worker == wanted.worker else []
        answer = self.do(partial(take_anew, partial(self.rig.finish_take, endings), wanted))
        self.learn(wanted.worker, answer[1])

    @rule(
        data=st.data(),
        usage=usages,
        blame=st.sampled_from(["blameless", "attempt", "crashed", "crashed"]),
        jitter=st.sampled_from([0, 1, -0.5, 3]),
    )
    def release(
        self, data: st.DataObject, usage: tuple[int, int, int], blame: str, jitter: float
    ) -> None:
        request_id, worker, call = self.lease(data)
        head = {"state": "failed", "status": data.draw(st.sampled_from([429, 500]))}
        one = Release(request_id, call, blame, jitter, usage, "engine", head, b"no")
        self.do(partial(self.rig.release, worker, [one]))

    def held_by(self, worker: str) -> list[tuple[str, int]]:
        leases = [lease for lease in dict.fromkeys(self.leases) if self.runs(lease)]
        return [(request_id, call) for request_id, holder, call in leases if holder == worker]

    @rule(worker=st.sampled_from(WORKERS), usage=usages)
    def crash(self, worker: str, usage: tuple[int, int, int]) -> None:
        """The engine of a worker dies with all that it held."""
        self.lose_engine(worker, usage)

    def lose_engine(self, worker: str, usage: tuple[int, int, int]) -> None:
        blamed = [
            Release(request_id, call, "crashed", 0, usage, "engine", {}, b"")
            for request_id, call in self.held_by(worker)
        ]
        self.do(partial(self.rig.release, worker, blamed))

    @rule(worker=st.sampled_from(WORKERS), name=st.sampled_from(CLASSES))
    def crash_alone(self, worker: str, name: str) -> None:
        """A worker of one slot, which whatever it takes kills, twice."""
        for _ in range(2):
            self.calls[worker] += 1
            wanted = Take(worker, self.calls[worker], 1, 2, 1, {name: 1})
            self.learn(worker, self.do(partial(take_anew, self.rig.take, wanted)))
            self.lose_engine(worker, (1, 0, 1))

    @rule(worker=st.sampled_from(WORKERS), usage=usages)
    def finish_all(self, worker: str, usage: tuple[int, int, int]) -> None:
        """A worker ends all that it holds."""
        endings = [
            Ending(request_id, call, "done", "", usage, {"state": "done", "status": 200}, b"yes")
            for request_id, call in self.held_by(worker)
        ]
        self.do(partial(self.rig.finish, worker, endings))

    @rule(data=st.data(), slots=st.integers(0, 16))
    def register(self, data: st.DataObject, slots: int) -> None:
        worker = data.draw(st.sampled_from(WORKERS))
        models = data.draw(st.lists(st.sampled_from(["m", "n"]), max_size=2))
        served = (list(CLASSES), models)
        self.do(partial(self.rig.register, worker, "serving", slots, 1, served))

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: str) -> None:
        """Its call numbers are forgotten with it, so that it goes on under a new name."""
        self.do(partial(self.rig.leave, worker))

    @rule(worker=st.sampled_from(WORKERS))
    def read_orders(self, worker: str) -> None:
        self.do(partial(self.rig.read_orders, worker))

    @rule(name=st.sampled_from(CLASSES))
    def hear_bell(self, name: str) -> None:
        self.do(partial(self.rig.hear_bell, name))

    # Duties, operators, time ----------------------------------------------------------------------

    @rule(forced=st.booleans())
    def sweep(self, forced: bool) -> None:
        self.do(partial(self.rig.sweep, forced))

    @rule(ms=st.sampled_from([1, 900, 7_000, 19_000, 45_000, 120_000, 500_000]))
    def pass_time(self, ms: int) -> None:
        self.rig.pass_time(ms)
        self.rig.check()

    @rule(ms=st.sampled_from([1, 30_000, 400_000]))
    def clock_goes_back(self, ms: int) -> None:
        """Another server is the primary now, and its clock is behind."""
        self.behind_ms += ms
        self.rig.pass_time(-ms)
        self.rig.check()

    @rule(times=st.integers(2, 9))
    def sweep_regularly(self, times: int) -> None:
        """What a living process does: a sweep each tick, so that no outage is suspected."""
        for _ in range(times):
            self.rig.pass_time(self.settings.sweep_ms)
            self.do(self.rig.sweep)

    @rule(paused=st.sampled_from([None, False, True]), draining=st.sampled_from([None, False]))
    def switch(self, paused: bool | None, draining: bool | None) -> None:
        self.do(partial(self.rig.switch, paused, draining))
        self.do(partial(self.rig.switch, False, None))

    @rule()
    def drain_and_resume(self) -> None:
        self.do(partial(self.rig.switch, None, True))
        item = Item(f"rig.d{len(self.made):025d}", "high", "ann")
        self.do(partial(self.rig.admit, [item], ""))
        self.do(partial(self.rig.switch, None, False))

    @rule(
        late=st.integers(0, 2),
        stay=st.sampled_from([CLASSES, ("critical", "high")]),
        weight=st.sampled_from([1.0, 4.0]),
    )
    def configure(self, late: int, stay: tuple[str, ...], weight: float) -> None:
        known = {one.name: one for one in pool_settings().classes}
        known["high"] = known["high"].model_copy(update={"weight": weight})
        wanted = self.settings.model_copy(update={"classes": tuple(known[name] for name in stay)})
        self.do(partial(self.rig.configure, wanted, max(1, self.rig.oracle.epoch - late // 2)))

    @rule(worker=st.sampled_from(WORKERS))
    def order(self, worker: str) -> None:
        self.do(partial(self.rig.order, worker, "drain"))

    @rule(at=st.integers(0, 3))
    def requeue(self, at: int) -> None:
        answer = self.do(partial(self.rig.requeue, at))
        self.ids += [answer[1].decode()] if answer[0] == b"ok" else []

    @rule(data=st.data(), name=st.sampled_from(["", "high"]), age=st.sampled_from([0, 0, 90_000]))
    def read_letters(self, data: st.DataObject, name: str, age: int) -> None:
        reason = data.draw(st.sampled_from(["", "", "crash_loop", "lost"]))
        which = Which(reason, name, data.draw(st.sampled_from(["", *TENANTS])), "", age)
        self.rig.letters(which, most=data.draw(st.integers(1, 3)))

    @rule(reason=st.sampled_from(["", "crash_loop", "lost"]), age=st.sampled_from([0, 90_000]))
    def purge(self, reason: str, age: int) -> None:
        self.do(partial(self.rig.purge, Which(reason=reason, age=age)))

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """A call that was made before comes again: its answer was lost, or the network kept it."""
        if self.made:
            self.do(data.draw(st.sampled_from(self.made[-12:])))


def take_anew(call: Any, wanted: Take) -> Any:
    """The same take, each time as if it were made for the first time."""
    return call(Take(*(getattr(wanted, name) for name in
                       ("worker", "call", "slots", "wire", "count", "free"))))  # fmt: skip


@pytest.mark.timeout(0)
def test_the_library_does_what_the_oracle_says(
    client: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any sequence of calls leaves answers and stored state as the protocol wants them."""
    Machine.client, Machine.steps = client, 0
    profile = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=PHASES,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=profile)
    with capsys.disabled():
        print(f"\nmachine: {Machine.steps} steps in {EXAMPLES} sequences, each compared whole")
        print("requests:", ", ".join(f"{n} {word}" for word, n in Machine.reached.most_common()))
