"""Take: one call under load, the same call until answered, bells only while a slot is free."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis
from tests.worker.desk import CHAT, Desk
from tests.worker.proxy import Proxy
from tests.worker.scripted import Held, ScriptedEngine, answer, answers

from forebay_shared.calls import Leases, Library
from forebay_shared.calls.library import HEAVY_ITEMS_PER_CALL, Argument, Call
from forebay_shared.records import Envelope
from forebay_worker.engine import Answer, EngineCall, EngineEvent
from forebay_worker.worker import Worker

pytestmark = pytest.mark.anyio

ONE = Envelope(CHAT, "m", b'{"model":"m"}')


async def ended(desk: Desk, ids: list[str]) -> list[str]:
    return [(await desk.result(one)).state for one in ids]


async def blocked_on(redis: Redis, worker: Worker) -> list[dict[str, str]]:
    """The worker's clients that are blocked reading bells now."""
    return [
        one
        for one in await redis.client_list()
        if one["name"] == f"bells-{worker.id}" and one["cmd"] == "blpop" and "b" in one["flags"]
    ]


async def until_blocked(redis: Redis, worker: Worker, blocked: bool) -> None:
    async with asyncio.timeout(3):
        while bool(await blocked_on(redis, worker)) != blocked:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # Redis tells nobody that a client has blocked


async def test_take_and_finish_cost_one_call_a_request_under_load(desk: Desk) -> None:
    """With requests waiting, ends travel with the next take: fewer calls than requests."""
    ids = await desk.admit([ONE] * 100)
    worker, _ = await desk.worker(ScriptedEngine(answers), slots=8)
    assert await ended(desk, ids) == ["done"] * 100
    assert calls(worker, "finish_take") + calls(worker, "take") <= 40
    assert calls(worker, "finish") <= 2


def calls(worker: Worker, step: str) -> float:
    value = worker.metrics.registry.get_sample_value("forebay_redis_calls_total", {"step": step})
    return value or 0.0


class Weighing(Library):
    """Notes how many requests each call grants, ends or gives back, and what went together."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self.weights: defaultdict[str, set[int]] = defaultdict(set)
        self.trips: set[tuple[str, ...]] = set()

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        replies = await super()._send(calls)
        self.trips.add(tuple(step for step, _ in calls))
        for (step, arguments), reply in zip(calls, replies, strict=True):
            self.weights[step].add(_weight(step, arguments, reply))
        return replies


def _weight(step: str, arguments: Sequence[Argument], reply: Any) -> int:
    if step == "take":
        return len(reply[0])
    return int(arguments[1]) + (len(reply[1][0]) if step == "finish_take" else 0)


async def test_no_call_is_heavy(desk: Desk) -> None:
    """With a hundred slots, a call still grants, ends and gives back only a few requests."""
    held = Held()
    engine = ScriptedEngine(held)
    worker, task = await desk.worker(engine, slots=100)
    library = Weighing(desk.redis)
    worker.taker._leases = Leases(library)
    first, second = await desk.admit([ONE] * 100), await desk.admit([ONE] * 100)
    while len(engine.calls) < 100:
        engine.called.clear()
        await engine.called.wait()
    engine.script = Held()
    held.release.set()
    assert await ended(desk, first) == ["done"] * 100
    while len(engine.calls) < 200:
        engine.called.clear()
        await engine.called.wait()
    worker.drain.request("test")
    worker.drain.request("test")
    await task
    assert {await desk.state(one) for one in second} == {"queued"}
    most = {step: max(seen) for step, seen in library.weights.items()}
    assert max(most.values()) == HEAVY_ITEMS_PER_CALL
    assert most["finish"] == most["take"] == most["release"] == HEAVY_ITEMS_PER_CALL
    assert ("finish", "take") in library.trips
    assert max(map(len, library.trips)) == 4  # releases


async def test_a_take_whose_reply_was_lost_is_repeated_as_it_was(desk: Desk) -> None:
    """The repeat names the grants of the lost reply: each request runs once, none waits."""
    proxy = Proxy(desk.url)
    await proxy.open()
    engine = ScriptedEngine(answers)
    worker, _ = await desk.worker(engine, redis=proxy.url)
    await until_blocked(desk.redis, worker, True)
    proxy.lose("forebay_take_")
    ids = await desk.admit([ONE] * 3)
    await asyncio.wait_for(proxy.lost.wait(), 3)
    assert await ended(desk, ids) == ["done"] * 3
    assert sorted(one.asked.request_id for one in engine.calls) == sorted(ids)
    assert [(await desk.show(one)).takes for one in ids] == [1, 1, 1]
    await desk.close()
    await proxy.close()


async def test_a_finish_take_whose_reply_was_lost_is_repeated_as_it_was(desk: Desk) -> None:
    """Ends are written once, and what the lost reply granted runs once."""
    proxy = Proxy(desk.url)
    await proxy.open()
    held = Held()
    engine = ScriptedEngine(held)
    await desk.worker(engine, redis=proxy.url, slots=1)
    ids = await desk.admit([ONE] * 3)
    await engine.called.wait()
    proxy.lose("forebay_finish_take_")
    held.release.set()
    await asyncio.wait_for(proxy.lost.wait(), 3)
    assert await ended(desk, ids) == ["done"] * 3
    assert sorted(one.asked.request_id for one in engine.calls) == sorted(ids)
    assert [(await desk.show(one)).takes for one in ids] == [1, 1, 1]
    await desk.close()
    await proxy.close()


async def test_bells_are_read_only_while_a_slot_is_free(desk: Desk) -> None:
    """A full worker hears no bells; with a free slot it waits for exactly its classes."""
    held = Held()
    worker, _ = await desk.worker(ScriptedEngine(held), slots=1, classes=("normal", "high"))
    await until_blocked(desk.redis, worker, True)
    waited = await desk.redis.execute_command("CLIENT", "LIST")
    assert f"bells-{worker.id}" in str(waited)
    assert worker.bells._classes == ["high", "normal"]
    request_id = await desk.submit()
    await until_blocked(desk.redis, worker, False)
    held.release.set()
    await desk.result(request_id)
    await until_blocked(desk.redis, worker, True)


async def test_bells_are_not_read_while_the_engine_is_down(desk: Desk) -> None:
    """Who cannot take leaves the bells to those who can."""
    engine = ScriptedEngine(answers)
    worker, _ = await desk.worker(engine)
    await until_blocked(desk.redis, worker, True)
    engine.up = False
    await until_blocked(desk.redis, worker, False)
    engine.up = True
    await until_blocked(desk.redis, worker, True)


async def test_other_classes_are_left_to_others(desk: Desk) -> None:
    """A worker told to serve some classes takes nothing of another."""
    engine = ScriptedEngine(answers)
    await desk.worker(engine, classes=("high",))
    low = await desk.submit(class_name="low")
    high = await desk.submit(class_name="high")
    assert (await desk.result(high)).state == "done"
    assert await desk.state(low) == "queued"


async def test_an_idle_worker_starts_new_work_at_once(desk: Desk) -> None:
    """The bell wakes it: no poll stands between admit and take."""
    worker, _ = await desk.worker(ScriptedEngine(answers))
    took_s = []
    for _ in range(5):
        await until_blocked(desk.redis, worker, True)
        began_s = asyncio.get_running_loop().time()
        await desk.result(await desk.submit())
        took_s.append(asyncio.get_running_loop().time() - began_s)
    assert sorted(took_s)[2] < 0.05


async def test_never_more_than_slots_at_once(desk: Desk) -> None:
    """Nothing is granted without a free slot."""
    most = running = 0

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        yield Answer(200, "application/json", answer())

    await desk.worker(ScriptedEngine(script), slots=3)
    assert await ended(desk, await desk.admit([ONE] * 30)) == ["done"] * 30
    assert most == 3


async def test_a_request_granted_again_stops_its_old_run_first(desk: Desk) -> None:
    """A lease lost unnoticed comes back as a new grant: the old engine call ends before."""

    async def slow_to_stop(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
        yield Answer(200, "application/json", answer())

    engine = ScriptedEngine(slow_to_stop)
    worker, _ = await desk.worker(engine, slots=2)
    request_id = await desk.submit()
    await engine.called.wait()
    old = worker.runs.held()[0]
    desk.stop_renewing(worker)
    engine.called.clear()
    await asyncio.wait_for(engine.called.wait(), 5)
    assert [one.how for one in engine.calls] == ["aborted", "runs"]
    assert (old.stopped is not None, len(worker.runs), worker.runs.active) == (True, 1, 1)
    assert worker.runs.held()[0].grant.request_id == request_id
