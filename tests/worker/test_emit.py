"""Emit: the first token at once, then all streams together, and what Redis refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

import pytest
from redis import exceptions
from tests.worker.desk import Desk
from tests.worker.scripted import ScriptedEngine, chunk

from forebay_shared.calls import Emission, Grant, Leases
from forebay_shared.metrics import Metrics
from forebay_worker.emit import BYTES_PER_CALL, Emitter, _batches
from forebay_worker.engine import Chunk, EngineCall, EngineEvent
from forebay_worker.link import Link
from forebay_worker.runs import Run, Stop
from forebay_worker.worker import Worker

pytestmark = pytest.mark.anyio


def emits(worker: Worker) -> float:
    value = worker.metrics.registry.get_sample_value("forebay_redis_calls_total", {"step": "emit"})
    return value or 0.0


async def all_confirmed(worker: Worker) -> Run:
    """Wait until Redis has confirmed all chunks of the worker's only run."""
    (run,) = worker.runs.held()
    if run.chunks:
        run.room = asyncio.Event()
        await run.room.wait()
    return run


class Metronome:
    """Streams of `tokens` tokens, one each `every_s`, after a role-only chunk."""

    def __init__(self, tokens: int, every_s: float) -> None:
        self._tokens = tokens
        self._every_s = every_s

    async def __call__(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
        yield Chunk(chunk(role="assistant"))
        for number in range(self._tokens):
            await asyncio.sleep(self._every_s)
            yield Chunk(chunk(f" {number}"))
        yield Chunk(chunk("", finish="stop"))


async def test_the_first_token_comes_at_once_with_what_was_before_it(desk: Desk) -> None:
    """Role and first text arrive together, without waiting for a flush."""
    go_on = asyncio.Event()
    spoke_s = 0.0

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        nonlocal spoke_s
        yield Chunk(chunk(role="assistant"))
        await asyncio.sleep(0.1)
        spoke_s = time.monotonic()
        yield Chunk(chunk("first"))
        await go_on.wait()

    await desk.worker(ScriptedEngine(script))
    request_id = await desk.submit(stream=True)
    seen = await desk.until_chunks(request_id, 1)
    assert time.monotonic() - spoke_s < 0.05
    assert [event for _, event in seen.chunks] == [chunk(role="assistant"), chunk("first")]
    go_on.set()


async def test_the_first_token_does_not_wait_for_the_flush_of_others(desk: Desk) -> None:
    """Though other streams are flushed each 100 ms only, a new one's first token goes at once."""
    worker, _ = await desk.worker(ScriptedEngine(Metronome(500, 0.002)))
    await desk.until_chunks(await desk.submit(stream=True), 1)
    took_s = []
    for _ in range(3):
        for _ in range(40):
            worker.emitter._pace(1.0)
        began_s = time.monotonic()
        request_id = await desk.submit(stream=True)
        await desk.until_chunks(request_id, 1)
        took_s.append(time.monotonic() - began_s)
    assert min(took_s) < 0.03


async def test_a_flush_takes_few_calls(desk: Desk) -> None:
    """Twenty streams of a hundred tokens in 0.5 s cost tens of calls, not thousands."""
    worker, _ = await desk.worker(ScriptedEngine(Metronome(100, 0.005)), slots=20)
    ids = [await desk.submit(stream=True) for _ in range(20)]
    assert [(await desk.result(one)).state for one in ids] == ["done"] * 20
    assert emits(worker) < 120
    for one in ids:
        seen = await desk.seen(one)
        texts = [chunk(f" {number}") for number in range(100)]
        assert [event for _, event in seen.chunks[1:-1]] == texts


async def test_the_flush_slows_down_where_redis_takes_long(desk: Desk) -> None:
    """Between 20 ms and 100 ms, at ten times what a call takes."""
    worker, _ = await desk.worker(ScriptedEngine(Metronome(1, 0)))
    emitter = worker.emitter
    for took_s, expected_s in ((0.0001, 0.020), (0.005, 0.050), (1.0, 0.100)):
        for _ in range(40):
            emitter._pace(took_s)
        assert emitter.interval_s == pytest.approx(expected_s, rel=0.01)


async def test_a_stream_larger_than_a_call_arrives_whole(desk: Desk) -> None:
    """Chunks above 1 MiB in sum, one of them above it alone, travel in several calls."""
    texts = ["a" * (BYTES_PER_CALL + 10), *("b" * 300_000 for _ in range(8))]

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        for text in texts:
            yield Chunk(chunk(text))

    await desk.worker(ScriptedEngine(script))
    request_id = await desk.submit(stream=True)
    assert (await desk.result(request_id)).state == "done"
    entries = await desk.redis.xrange(desk.keys.output(request_id))
    assert [fields[b"event"] for _, fields in entries[:-1]] == [chunk(text) for text in texts]


async def test_chunks_that_redis_has_lost_interrupt_the_stream(desk: Desk) -> None:
    """A failover lost confirmed chunks: the rest would leave a gap, so it ends with an error."""
    go_on = asyncio.Event()

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        for number in range(3):
            yield Chunk(chunk(f" {number}"))
        await go_on.wait()
        yield Chunk(chunk(" 3"))
        await asyncio.Event().wait()

    engine = ScriptedEngine(script)
    worker, _ = await desk.worker(engine)
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 3)
    (await all_confirmed(worker)).offset += 2  # as if two more had been confirmed
    go_on.set()
    result = await desk.result(request_id)
    assert (result.state, result.reason) == ("failed", "interrupted")
    await asyncio.wait_for(engine.calls[0].over.wait(), 1)
    assert (await desk.seen(request_id)).ended


async def test_a_gap_found_at_the_end_interrupts_the_stream(desk: Desk) -> None:
    """The same, told by finish and not by emit."""
    go_on = asyncio.Event()

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        yield Chunk(chunk("first"))
        await go_on.wait()

    worker, _ = await desk.worker(ScriptedEngine(script))
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 1)
    (await all_confirmed(worker)).offset += 2
    go_on.set()
    result = await desk.result(request_id)
    assert (result.state, result.reason) == ("failed", "interrupted")
    assert len((await desk.seen(request_id)).chunks) == 1


async def test_a_full_redis_keeps_nothing_from_ending(desk: Desk) -> None:
    """At maxmemory emits are refused and kept; when there is room again the stream is whole."""
    await desk.worker(ScriptedEngine(Metronome(5, 0.02)))
    request_id = await desk.submit(stream=True)
    await desk.until(request_id, "running")
    used = (await desk.redis.info("memory"))["used_memory"]
    await desk.redis.config_set("maxmemory", used)
    try:
        result = await desk.result(request_id)
    finally:
        await desk.redis.config_set("maxmemory", 0)
    assert result.state == "done"
    texts = [event for _, event in (await desk.seen(request_id)).chunks]
    assert texts[1:-1] == [chunk(f" {number}") for number in range(5)]


def run_with(*sizes: int) -> Run:
    """A run that has chunks of these sizes to write."""
    run = Run(Grant("p.1", 1, "normal", "t", 1, 0, 0, 0, False, 1_000, 5, b"", b""))
    for size in sizes:
        run.add(b"x" * size)
    return run


def shape(runs: list[Run]) -> list[list[int]]:
    """Per call of a flush, per run: how many chunks it carries."""
    return [[len(chunks) for _, chunks in batch] for batch in _batches(runs)]


def test_a_flush_makes_as_many_calls_as_all_streams_need() -> None:
    """≤ 16 streams, ≤ 100 chunks and ≤ 1 MiB a call, ≤ 100 chunks of a stream; none waits."""
    half = BYTES_PER_CALL // 2
    assert shape([run_with(1) for _ in range(43)]) == [[1] * 16, [1] * 16, [1] * 11]
    assert shape([run_with(half, half), run_with(1), run_with(half)]) == [[2], [1, 1]]
    assert shape([run_with(BYTES_PER_CALL + 1, 1), run_with(1)]) == [[1], [1]]
    assert shape([run_with(*[1] * 250)]) == [[100]]
    assert shape([run_with(0), run_with()]) == [[1]]
    assert shape([run_with(*[1] * 40) for _ in range(3)]) == [[40, 40], [40]]
    ended, stopped = run_with(1), run_with(1)
    ended.ended = True
    stopped.stop(Stop.LOST)
    assert shape([ended, stopped]) == []


class Halting(Leases):
    """Fails for the calls that carry a given request, and holds the others back."""

    failing = ""

    async def emit(self, worker: str, emissions: Sequence[Emission]) -> list[str]:
        if any(one.request_id == self.failing for one in emissions):
            raise exceptions.ConnectionError("away")
        await asyncio.sleep(0.05)
        return await super().emit(worker, emissions)


async def test_a_failed_call_of_a_flush_costs_the_others_nothing(desk: Desk) -> None:
    """Every call of the flush is awaited: what one confirmed is not written or counted twice."""
    texts = [chunk("a" * 700_000), chunk("b" * 700_000)]
    start, go_on = asyncio.Event(), asyncio.Event()

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        await start.wait()
        for text in texts:
            yield Chunk(text)
        await go_on.wait()

    worker, _ = await desk.worker(ScriptedEngine(script))
    leases = worker.emitter._leases = Halting(desk.library)
    first, second = [await desk.submit(stream=True) for _ in range(2)]
    await desk.until(second, "running")
    leases.failing = second
    start.set()
    await desk.until_chunks(first, 1)
    leases.failing = ""
    await desk.until_chunks(second, 1)
    go_on.set()
    for one in (first, second):
        assert (await desk.result(one)).state == "done"
        entries = await desk.redis.xrange(desk.keys.output(one))
        assert [fields[b"event"] for _, fields in entries[:-1]] == texts


async def test_what_is_sent_is_settled_before_its_call_begins() -> None:
    """A run that drops its chunks in between must not send old ones under a new offset."""

    class Noting(Leases):
        def __init__(self) -> None:
            self.sent: list[Emission] = []

        async def emit(self, worker: str, emissions: Sequence[Emission]) -> list[str]:
            self.sent += emissions
            return ["ok"] * len(emissions)

    leases, metrics = Noting(), Metrics()
    emitter = Emitter("w", leases, Link(metrics), metrics)
    run = run_with(1, 1, 1, 1, 1, 1)
    run.confirm(2)
    emitter.soon(run)
    flush = asyncio.create_task(emitter.flush())
    asyncio.get_running_loop().call_soon(run.forget_chunks)
    await flush
    ((offset, count),) = [(one.offset, len(one.chunks)) for one in leases.sent]
    assert (offset, count) == (2, 4)
