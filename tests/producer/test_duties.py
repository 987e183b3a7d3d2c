"""Duties that outlive errors, tasks that end although a cancellation got lost, and shared calls."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from tests.producer.running import BODY, CHAT, serving, until
from tests.producer.scripted import working
from tests.producer.scripts import answer

from forebay_producer.admitter import Admitter
from forebay_producer.listen import CannotServe, is_loopback, require_safe, split_address
from forebay_producer.options import ServeOptions, Timings
from forebay_producer.supervise import end_tasks, keep_up
from forebay_shared.calls import Admission, Admitted, Intake, Refusal
from forebay_shared.calls.library import HEAVY_ITEMS_PER_CALL
from forebay_shared.metrics import Metrics
from forebay_shared.records import Envelope

pytestmark = pytest.mark.anyio


async def test_a_duty_goes_on_after_errors() -> None:
    runs: list[int] = []

    async def duty() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise RedisConnectionError if len(runs) == 1 else ValueError

    async with asyncio.timeout(3):
        await keep_up("duty", duty)
    assert len(runs) == 3


async def test_a_task_that_loses_a_cancellation_is_ended_all_the_same() -> None:
    lost: list[int] = []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if lost:
                    raise
                lost.append(1)

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await end_tasks([task], 5)
    assert task.cancelled()


class FakeIntake(Intake):
    """Answers when told to, and counts calls."""

    def __init__(self, *errors: Exception) -> None:
        self.calls: list[list[str]] = []
        self.trips: list[int] = []
        self.gate = asyncio.Event()
        self.errors = list(errors)

    async def admit_together(
        self, pages: Sequence[Sequence[Admission]], inbox: str = ""
    ) -> list[list[Admitted | Refusal] | ResponseError]:
        self.trips.append(len(pages))
        self.calls += [[one.request_id for one in page] for page in pages]
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        return [self.answer(page) for page in pages]

    def answer(self, page: Sequence[Admission]) -> list[Admitted | Refusal] | ResponseError:
        if any(one.request_id == "bad" for one in page):
            return ResponseError("BADCALL")
        return [Admitted(one.request_id, "queued", False) for one in page]


class NoInbox:
    name = "i.1"


def admission(name: str, size: int = 1) -> Admission:
    return Admission(name, "normal", "t", Envelope(CHAT, "m", b"x" * size), 1_000)


def admitting(intake: FakeIntake) -> Admitter:
    return Admitter(intake, NoInbox(), Metrics())  # type: ignore[arg-type]


async def test_admits_that_come_meanwhile_go_together_in_calls_of_few() -> None:
    intake = FakeIntake()
    admitter = admitting(intake)
    asks = [asyncio.create_task(admitter.admit(admission(str(n)))) for n in range(40)]
    await asyncio.sleep(0)
    intake.gate.set()
    answers = await asyncio.gather(*asks)
    assert [one.request_id for one in answers] == [str(n) for n in range(40)]
    most = HEAVY_ITEMS_PER_CALL
    assert [len(call) for call in intake.calls] == [most] * (40 // most) + [40 % most]
    assert intake.trips == [4, 4, 4, 2]


async def test_a_call_carries_about_a_megabyte() -> None:
    intake = FakeIntake()
    admitter = admitting(intake)
    intake.gate.set()
    sizes = [600_000, 600_000, 2_000_000, 10, 10]
    await asyncio.gather(*(admitter.admit(admission(str(n), s)) for n, s in enumerate(sizes)))
    assert [len(call) for call in intake.calls] == [1, 1, 1, 2]


async def test_one_malformed_admission_does_not_fail_its_neighbours() -> None:
    intake = FakeIntake()
    admitter = admitting(intake)
    intake.gate.set()
    names = ["a", "bad", "b", "c"]
    answers = await asyncio.gather(
        *(admitter.admit(admission(name)) for name in names), return_exceptions=True
    )
    assert [type(one) for one in answers] == [Admitted, ResponseError, Admitted, Admitted]
    assert intake.calls == [["a", "bad", "b"], ["c"], ["a"], ["bad"], ["b"]]


async def test_who_is_admitted_waits_for_no_refused_neighbour() -> None:
    """Those of a refused page are asked for one by one, and Redis may be away by then."""

    class AwayLater(FakeIntake):
        async def admit_together(
            self, pages: Sequence[Sequence[Admission]], inbox: str = ""
        ) -> list[list[Admitted | Refusal] | ResponseError]:
            answers = await super().admit_together(pages, inbox)
            self.gate.clear()
            return answers

    intake = AwayLater()
    admitter = admitting(intake)
    names = ["a", "bad", "b", "c"]
    asks = [asyncio.create_task(admitter.admit(admission(name))) for name in names]
    intake.gate.set()
    assert isinstance(await asyncio.wait_for(asks[3], 1), Admitted)
    assert not any(one.done() for one in asks[:3])
    while not all(one.done() for one in asks):
        intake.gate.set()
        await asyncio.sleep(0)
    assert [one.exception() is None for one in asks] == [True, False, True, True]


async def test_a_lost_connection_is_tried_once_more() -> None:
    intake = FakeIntake(RedisConnectionError())
    intake.gate.set()
    assert isinstance(await admitting(intake).admit(admission("a")), Admitted)
    assert intake.calls == [["a"], ["a"]]


def reads_of(spy: redis.Redis) -> int:
    return int(spy.info("commandstats").get("cmdstat_xread", {"calls": 0})["calls"])


async def test_redis_calls_are_shared_under_load(redis_url: str) -> None:
    """One admit and at most one reply, XREAD included, for each request at 64 in flight."""
    count = 320
    async with serving(redis_url) as one, working(redis_url, answer):

        async def client(n: int) -> None:
            for m in range(count // 64):
                reply = await one.http.post(CHAT, json={**BODY, "seed": 64 * m + n})
                assert reply.status_code == 200

        with redis.Redis.from_url(redis_url) as spy:
            before = reads_of(spy)
            await asyncio.gather(*(client(n) for n in range(64)))
            reads = reads_of(spy) - before
        text = (await one.http.get("/metrics")).text
    calls = {
        step: float(line.split()[1])
        for line in text.splitlines()
        for step in ("admit", "reply")
        if line.startswith(f'forebay_redis_calls_total{{step="{step}"}}')
    }
    print(f"per request: admit {calls['admit'] / count:.2f}, "
          f"reply {calls['reply'] / count:.2f}, xread {reads / count:.2f}")  # fmt: skip
    assert calls["admit"] <= count
    assert calls["reply"] + reads <= count


async def test_waiting_clients_do_not_cost_their_bodies(redis_url: str) -> None:
    count, size = 40, 500_000
    async with serving(redis_url) as one:
        content = b'{"model":"m","x":"' + b"y" * size + b'"}'
        tracemalloc.start()
        asks = [asyncio.create_task(one.http.post(CHAT, content=content)) for _ in range(count)]
        inbox = one.producer.replica.pools["default"].inbox
        await until(lambda: sum(reader.armed for reader in inbox.readers()) == count, 20)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for ask in asks:
            ask.cancel()
        await until(lambda: one.producer.waiters() == 0)
    print(f"{held / count:,.0f} bytes a waiting client")
    assert held < count * size / 5


def test_addresses_are_read() -> None:
    assert split_address("1.2.3.4:5") == ("1.2.3.4", 5)
    assert split_address("[::1]:5") == ("::1", 5)
    assert split_address(":5") == split_address("5") == ("127.0.0.1", 5)
    for wrong in ("", "x", "1.2.3.4", "a:b", "1:70000"):
        with pytest.raises(CannotServe):
            split_address(wrong)


def test_without_keys_only_loopback_is_served() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0")] == [
        True,
        True,
        True,
        False,
    ]
    require_safe(ServeOptions("redis://x"))
    require_safe(ServeOptions("redis://x", host="0.0.0.0", insecure=True))
    with pytest.raises(CannotServe, match="--keys"):
        require_safe(ServeOptions("redis://x", host="0.0.0.0"))


def test_timings_stand_in_relation() -> None:
    with pytest.raises(ValueError, match="inbox_ttl_s"):
        Timings(inbox_ttl_s=10)
    with pytest.raises(ValueError, match="inbox_renew_s"):
        Timings(block_s=30)
