"""Drain: finish within the grace, give the rest back without blame, be gone on time."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.flow.processes import Child
from tests.servers import Server, start_server
from tests.worker.desk import CHAT, Desk
from tests.worker.proxy import Proxy
from tests.worker.scripted import Held, ScriptedEngine, answers

from forebay_shared.records import Envelope
from forebay_worker.drain import AFTER_GRACE_S
from forebay_worker.worker import Worker

pytestmark = pytest.mark.anyio

ONE = Envelope(CHAT, "m", b'{"model":"m"}')


async def drained(worker: Worker, task: asyncio.Task[int]) -> float:
    """Ask the worker to drain; seconds until it has gone."""
    began_s = time.monotonic()
    worker.drain.request("test")
    assert await task == 0
    return time.monotonic() - began_s


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    server = start_server(tmp_path)
    yield server
    server.resume()
    server.stop()


@pytest.fixture
async def own_desk(own_server: Server) -> AsyncIterator[Desk]:
    desk = Desk(own_server.url)
    await desk.open()
    yield desk
    await desk.close()


async def test_running_requests_finish_and_nothing_new_is_taken(desk: Desk) -> None:
    """Within the grace what runs ends as if nothing were; what waits is left to others."""
    held = Held()
    engine = ScriptedEngine(held)
    worker, task = await desk.worker(engine, slots=2)
    running = await desk.submit(stream=True)
    await desk.until_chunks(running, 1)
    worker.drain.request("test")
    waiting = await desk.submit()
    held.release.set()
    assert await task == 0
    assert await desk.state(running) == "done"
    assert await desk.state(waiting) == "queued"
    assert len(engine.calls) == 1


async def test_after_the_grace_the_rest_is_given_back_blameless(desk: Desk) -> None:
    """What did not finish runs elsewhere, with no attempt burned; the engine call is closed."""
    engine = ScriptedEngine(Held())
    worker, task = await desk.worker(engine, grace_s=0.2)
    ids = [await desk.submit() for _ in range(3)]
    while len(engine.calls) < 3:
        engine.called.clear()
        await engine.called.wait()
    assert 0.2 < await drained(worker, task) < 0.2 + AFTER_GRACE_S
    assert [one.how for one in engine.calls] == ["aborted"] * 3
    shown = [await desk.show(one) for one in ids]
    assert {(one.state, one.attempts, one.crashes) for one in shown} == {("queued", 0, 0)}
    await desk.worker(ScriptedEngine(answers))
    assert [(await desk.result(one)).state for one in ids] == ["done"] * 3


async def test_thirty_restarts_burn_no_attempt(desk: Desk) -> None:
    """However often its worker is replaced, a long request is never blamed."""
    request_id = await desk.submit()
    for _ in range(30):
        engine = ScriptedEngine(Held())
        worker, task = await desk.worker(engine, grace_s=0.0)
        await asyncio.wait_for(engine.called.wait(), 3)
        await drained(worker, task)
    await desk.worker(ScriptedEngine(answers))
    assert (await desk.result(request_id)).state == "done"
    shown = await desk.show(request_id)
    assert (shown.takes, shown.attempts, shown.crashes) == (31, 0, 0)


async def test_a_stream_that_cannot_finish_ends_with_one_error(desk: Desk) -> None:
    """Some of it was delivered: the client is told to retry."""
    worker, task = await desk.worker(ScriptedEngine(Held()), grace_s=0.1)
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 1)
    await drained(worker, task)
    result = await desk.result(request_id)
    assert (result.state, result.reason) == ("failed", "interrupted")


async def test_a_second_request_gives_back_at_once(desk: Desk) -> None:
    """Whoever cannot wait for the grace asks twice."""
    engine = ScriptedEngine(Held())
    worker, task = await desk.worker(engine, grace_s=60.0)
    request_id = await desk.submit()
    await engine.called.wait()
    worker.drain.request("first")
    assert await drained(worker, task) < 1
    assert await desk.state(request_id) == "queued"


async def test_many_are_given_back_in_time_over_a_slow_way(desk: Desk) -> None:
    """With 10 ms a round trip one call of few after another would leave some to their leases."""
    proxy = Proxy(desk.url)
    await proxy.open()
    engine = ScriptedEngine(Held())
    worker, task = await desk.worker(engine, redis=proxy.url, slots=400, grace_s=0.0)
    ids = [one for _ in range(4) for one in await desk.admit([ONE] * 100)]
    while len(engine.calls) < 400:
        engine.called.clear()
        await engine.called.wait()
    proxy.delay_s = 0.01
    await drained(worker, task)
    shown = [await desk.show(one) for one in ids]
    assert {(one.state, one.attempts, one.crashes) for one in shown} == {("queued", 0, 0)}
    await proxy.close()


async def test_what_an_open_take_grants_is_given_back(desk: Desk) -> None:
    """The answer to a take that was under way is waited for, and its grants go back."""
    proxy = Proxy(desk.url)
    await proxy.open()
    engine = ScriptedEngine(answers)
    worker, task = await desk.worker(engine, redis=proxy.url)
    proxy.hold("forebay_take_")
    request_id = await desk.submit()
    await asyncio.wait_for(proxy.holding.wait(), 3)
    worker.drain.request("test")
    await asyncio.sleep(0.1)
    assert not task.done()
    proxy.let_go.set()
    assert await task == 0
    shown = await desk.show(request_id)
    assert (shown.state, shown.takes, shown.attempts) == ("queued", 1, 0)
    assert engine.calls == []
    await proxy.close()


async def test_it_leaves_the_registry(desk: Desk) -> None:
    """A drained worker is not listed any more."""
    worker, task = await desk.worker(ScriptedEngine(answers))
    await desk.result(await desk.submit())
    await drained(worker, task)
    keys = [key async for key in desk.redis.scan_iter(match=f"*{worker.id}*")]
    assert keys == []


async def test_an_idle_worker_is_gone_at_once(desk: Desk) -> None:
    worker, task = await desk.worker(ScriptedEngine(answers))
    assert await drained(worker, task) < 1


async def test_with_redis_down_it_is_gone_on_time(own_desk: Desk, own_server: Server) -> None:
    """A request runs, Redis is dead: grace + 2 s, and no longer."""
    engine = ScriptedEngine(Held())
    worker, task = await own_desk.worker(engine, grace_s=0.5)
    await own_desk.submit()
    await engine.called.wait()
    own_server.kill()
    assert await drained(worker, task) <= 0.5 + AFTER_GRACE_S


async def test_idle_with_redis_down_it_is_gone_soon(own_desk: Desk, own_server: Server) -> None:
    """Nothing runs and an open take is not answered: two seconds, whatever the grace."""
    worker, task = await own_desk.worker(ScriptedEngine(answers), grace_s=60.0)
    own_server.kill()
    assert await drained(worker, task) <= AFTER_GRACE_S


async def test_with_redis_hanging_it_is_gone_on_time(own_desk: Desk, own_server: Server) -> None:
    """Redis takes connections and never answers: grace + 2 s, and no longer."""
    engine = ScriptedEngine(Held())
    worker, task = await own_desk.worker(engine, grace_s=0.5)
    await own_desk.submit()
    await engine.called.wait()
    own_server.pause()
    assert await drained(worker, task) <= 0.5 + AFTER_GRACE_S
    own_server.resume()


async def test_with_redis_never_up_it_is_gone_at_once(tmp_path: Path, desk: Desk) -> None:
    """A worker that is still waiting for Redis can be stopped."""
    worker, task = await desk.worker(
        ScriptedEngine(answers), serving=False, redis=f"unix://{tmp_path}/none.sock"
    )
    await asyncio.sleep(0.1)
    assert not task.done()
    assert await drained(worker, task) < 1


async def test_sigterm_ends_the_process_with_code_zero(desk: Desk, tmp_path: Path) -> None:
    """The process drains on SIGTERM, hurries on a second one, and exits 0."""
    log = tmp_path / "worker.log"
    child = Child("forebay_worker", ["--redis", desk.url, "--grace", "60"], log)
    request_id = await desk.submit(body={"model": "sim", "max_tokens": 10_000, "min_tokens": 9_000})
    await desk.until(request_id, "running")
    child.send(signal.SIGTERM)
    await asyncio.sleep(0.2)
    assert child.code is None
    began_s = time.monotonic()
    assert child.stop() == 0
    assert time.monotonic() - began_s < AFTER_GRACE_S
    assert await desk.state(request_id) == "queued"


@pytest.mark.parametrize("how", ["down", "hangs"])
async def test_the_process_is_gone_on_time_without_redis(
    own_desk: Desk, own_server: Server, tmp_path: Path, how: str
) -> None:
    """The whole process, with a request running: grace + 2 s, exit code 0.

    A second more is for the process itself, which a busy machine lets wait.
    """
    arguments = ["--redis", own_server.url, "--grace", "0.5"]
    child = Child("forebay_worker", arguments, tmp_path / "worker.log")
    request_id = await own_desk.submit(body={"model": "sim", "min_tokens": 9_000})
    await own_desk.until(request_id, "running")
    if how == "down":
        own_server.kill()
    else:
        own_server.pause()
    began_s = time.monotonic()
    assert child.stop() == 0
    assert time.monotonic() - began_s <= 0.5 + AFTER_GRACE_S + 1
    own_server.resume()
