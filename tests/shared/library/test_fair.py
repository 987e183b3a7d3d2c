"""The fairness rule in the library: each tag as the oracle works it out, in busy traffic."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from redis import Redis
from tests.model.hold import Ending, Held, Release
from tests.model.take import Take
from tests.shared.library.rig import Rig, plain, request_id

from forebay_shared.settings import ClassSettings, PoolSettings

CLASSES = ("critical", "high", "normal", "low")
SEEDS = range(int(os.environ.get("FOREBAY_SEEDS", "3")))
STEPS = 150


def settings() -> PoolSettings:
    return PoolSettings(
        classes=(
            ClassSettings(name="critical", strict=True, cap=0.1),
            ClassSettings(name="high", weight=8),
            ClassSettings(name="normal", weight=2),
            ClassSettings(name="low", weight=1),
        )
    )


class Traffic:
    """Random work of three workers, of which each serves what it likes at the moment."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.draw = random.Random(seed)
        self.count = 0
        self.calls = 0
        self.held: list[tuple[str, str, int]] = []

    def step(self) -> None:
        acts = (
            self.admit,
            self.take,
            self.take,
            self.finish,
            self.finish,
            self.renew,
            self.release,
        )
        self.draw.choice(acts)()
        self.rig.check()

    def admit(self) -> None:
        """A burst of one tenant in one class: some always longer than estimated, some shorter."""
        name = self.draw.choice(CLASSES)
        number = self.draw.randrange(4)
        weight = (1, 1, 2, 0.5)[number]
        estimate = self.draw.choice([-1, 10, 2_000])
        for _ in range(self.draw.randrange(1, 9)):
            self.count += 1
            one = plain(self.count, name, f"t{number}", weight=weight, estimate=estimate)
            self.rig.admit([one])

    def take(self) -> None:
        self.calls += 1
        worker = self.draw.choice(("w1", "w2", "w3"))
        served = self.draw.sample(CLASSES, self.draw.randrange(1, 5))
        free = {name: self.draw.randrange(1, 4) for name in served}
        wanted = Take(worker, self.calls, 8, 1, self.draw.randrange(1, 7), free)
        for row in self.rig.take(wanted)[0]:
            self.held.append((worker, row[0].decode(), row[3]))

    def one_held(self) -> tuple[str, str, int] | None:
        if not self.held:
            return None
        return self.held.pop(self.draw.randrange(len(self.held)))

    def usage(self) -> tuple[int, int, int]:
        return self.draw.randrange(100), self.draw.randrange(30), self.draw.choice([1, 50, 3_000])

    def finish(self) -> None:
        one = self.one_held()
        if one:
            worker, name, call = one
            ending = Ending(name, call, "done", "", self.usage(), {"state": "done"}, b"")
            self.rig.finish(worker, [ending])

    def renew(self) -> None:
        one = self.one_held()
        if one:
            worker, name, call = one
            self.rig.renew(worker, [Held(name, call, self.usage())])
            self.held.append(one)

    def release(self) -> None:
        one = self.one_held()
        if one:
            worker, name, call = one
            blame = self.draw.choice(["blameless", "blameless", "crashed"])
            self.rig.release(worker, [Release(name, call, blame, 0, self.usage(), "", {}, b"")])


@pytest.mark.parametrize("seed", SEEDS)
def test_tags_are_those_of_the_rule_at_each_step(client: Redis, seed: int) -> None:
    """Charges, settlement, activation, the cap, and what workers that serve some classes hoard."""
    traffic = Traffic(Rig(client, settings()), seed)
    for _ in range(STEPS):
        traffic.step()


def flood(rig: Rig, name: str, first: int, count: int = 20, **rest: Any) -> None:
    rig.admit([plain(first + n, name, estimate=10, **rest) for n in range(count)])


def serve(rig: Rig, call: int, *names: str) -> str:
    """The class of the next grant to a worker that serves these classes; it ends as estimated."""
    row = rig.take(Take("w1", call, 8, 1, 1, dict.fromkeys(names, 1)))[0][0]
    usage = (0, 0, int(rig.oracle.requests[row[0].decode()].charged / 2))
    ending = Ending(row[0].decode(), call, "done", "", usage, {"state": "done"}, b"")
    rig.finish("w1", [ending])
    return str(row[1].decode())


def test_a_strict_class_goes_first_and_stays_under_its_cap(client: Redis) -> None:
    """One in ten at a cap of 0.1, however many it has; its own picks do not lift v."""
    rig = Rig(client, settings())
    flood(rig, "critical", 0, 100)
    flood(rig, "high", 100, 100)
    flood(rig, "low", 200, 100)
    assert serve(rig, 1, *CLASSES) == "critical"
    assert rig.oracle.v == 0
    served = [serve(rig, call, *CLASSES) for call in range(2, 122)]
    rig.check()
    assert served.count("critical") / len(served) <= 0.1 + 5 / len(served)


def test_weights_hold_also_where_few_are_in_service(client: Redis) -> None:
    """One slot, all classes served by it: 8 : 2 : 1 within one request."""
    rig = Rig(client, settings())
    for first, name in enumerate(("high", "normal", "low")):
        flood(rig, name, first * 100, 100)
    served = [serve(rig, call, *CLASSES) for call in range(1, 111)]
    rig.check()
    shares = [served.count(name) for name in ("high", "normal", "low")]
    assert all(abs(got - due) <= 1 for got, due in zip(shares, (80, 20, 10), strict=True))


def test_a_class_that_was_kept_out_does_not_make_up_for_all_of_it(client: Redis) -> None:
    """No hoarded credit: after long service of one class the other does not stop it for long."""
    rig = Rig(client, settings())
    flood(rig, "normal", 0, 100)
    flood(rig, "low", 100, 100)
    for call in range(1, 61):
        serve(rig, call, "normal")
    served = [serve(rig, call, *CLASSES) for call in range(61, 91)]
    rig.check()
    first = served.index("normal")
    assert first <= 8
    assert 15 <= served[first:].count("normal") <= 20


def test_a_class_that_was_served_alone_is_not_stopped_for_all_of_it(client: Redis) -> None:
    """No hoarded debt: it comes again soon though others have far smaller tags."""
    rig = Rig(client, settings())
    flood(rig, "normal", 0, 100)
    flood(rig, "high", 100, 100)
    for call in range(1, 61):
        serve(rig, call, "normal")
    served = [serve(rig, call, *CLASSES) for call in range(61, 101)]
    rig.check()
    assert "normal" in served[:25]


def test_refunds_of_a_party_that_stays_backlogged_are_not_clipped(client: Redis) -> None:
    """A tenant that names three times what it uses gets its half all the same."""
    rig = Rig(client, settings())
    rig.admit([plain(n, tenant="liar", estimate=30) for n in range(100)])
    rig.admit([plain(100 + n, tenant="plain", estimate=10) for n in range(100)])
    served: list[bytes] = []
    held: list[tuple[int, bytes]] = []
    for call in range(1, 151):
        row = rig.take(Take("w1", call, 8, 1, 1, {"normal": 1}))[0][0]
        held.append((call, row[0]))
        served.append(row[2])
        if len(held) > 4:
            at, name = held.pop(0)
            ending = Ending(name.decode(), at, "done", "", (0, 0, 10), {"state": "done"}, b"")
            rig.finish("w1", [ending])
    rig.check()
    gap = abs(served.count(b"liar") - served.count(b"plain")) * 20
    assert gap <= 4 * (60 + 20)


def test_a_tenant_that_comes_back_owes_its_debt_and_has_no_credit(client: Redis) -> None:
    """Idle time earns nothing; what was overdrawn is repaid while the class is busy."""
    rig = Rig(client, settings())
    flood(rig, "normal", 0, 60, tenant="steady")
    flood(rig, "normal", 100, 1, tenant="guest")
    for call in range(1, 41):
        serve(rig, call, "normal")
    flood(rig, "normal", 200, 20, tenant="guest")
    tags = rig.oracle.class_state("normal")
    assert tags.flows["guest"].a == tags.v
    names = [rig.take(Take("w1", call, 8, 1, 1, {"normal": 1}))[0][0][2] for call in range(41, 61)]
    rig.check()
    assert 8 <= names.count(b"guest") <= 12
    assert rig.oracle.requests[request_id(200)].takes == 1
