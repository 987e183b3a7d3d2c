"""A simulated engine's life: load, time, closing, faults, crashes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any

import pytest
from tests.worker.engine.calls import answer, chat, chunks, post, said, sim, until_running

from forebay_worker.engine import (
    EngineBroken,
    EngineBusy,
    EngineCall,
    EngineError,
    EngineFailed,
    EngineUnreachable,
    Load,
)
from forebay_worker.engine.profile import DEFAULT, ZERO
from forebay_worker.engine.sim import SimEngine

pytestmark = pytest.mark.anyio
LONG = {"max_tokens": 5_000, "ignore_eos": True}


async def test_load_tells_who_runs_and_who_waits() -> None:
    """Twenty long texts on sixteen slots."""
    async with sim("default") as engine:
        running = [asyncio.ensure_future(answer(engine, chat(**LONG))) for _ in range(20)]
        await until_running(engine, 16)
        load = await engine.load()
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        after = await engine.load()
    assert (load.running, load.waiting, load.kv_tokens, load.slots) == (16, 4, 65_536, 16)
    assert 0 < load.kv_usage < 1
    assert after == Load(0, 0, 0.0, 0, 65_536, 16)


async def test_a_text_takes_the_time_of_its_steps() -> None:
    """50 tokens alone: 610 ms and the prefill, divided by the speed, not less."""
    async with sim("default", speed=10) as engine:
        begin = perf_counter()
        await answer(engine, chat(max_tokens=50, ignore_eos=True))
        took_s = perf_counter() - begin
    assert 0.061 <= took_s < 0.5


async def test_tokens_of_a_stream_come_one_by_one() -> None:
    """The first long before the last."""
    async with sim("default", speed=10) as engine:
        begin, times = perf_counter(), []
        async for _ in engine.generate(chat(max_tokens=50, ignore_eos=True, stream=True)):
            times.append(perf_counter() - begin)
    assert len(times) == 51
    assert times[1] < times[-1] / 3


@pytest.mark.parametrize("profile", ["default", "zero"])
@pytest.mark.parametrize("waiting", [False, True], ids=["running", "waiting"])
async def test_closing_frees_the_engine_at_once(profile: str, waiting: bool) -> None:
    """Nothing of an aborted call runs on, and the log says so."""
    slots = replace(DEFAULT, slots=1) if profile == "default" else ZERO
    async with sim(slots) as engine:
        first = engine.generate(chat("first", stream=True, **LONG))
        await anext(first)
        second = asyncio.ensure_future(answer(engine, chat("second", **LONG)))
        await asyncio.sleep(0)
        if waiting:
            second.cancel()
            await asyncio.wait([second])
        await first.aclose()
        assert engine.calls[0].outcome == "aborted"
        assert (await engine.load()).waiting == 0 or not waiting
        second.cancel()
        await asyncio.wait([second])
        assert (await engine.load()).running == 0
        assert [call.outcome for call in engine.calls] == ["aborted", "aborted"]


KINDS: dict[str, type[EngineError]] = {
    "500": EngineFailed,
    "503": EngineBusy,
    "error_event": EngineFailed,
    "broken": EngineBroken,
    "crash": EngineBroken,
}


@pytest.mark.parametrize("profile", ["default", "zero"])
@pytest.mark.parametrize("after", [0, 3, 9_999])
@pytest.mark.parametrize("kind", KINDS)
async def test_ordered_faults_strike(profile: str, kind: str, after: int) -> None:
    """After as many tokens as ordered, or where the text would end; never with success."""
    ask: dict[str, Any] = {"max_tokens": 6, "sim": {"fail": kind, "after_tokens": after}}
    got = []
    async with sim(profile) as engine:
        with pytest.raises(KINDS[kind]):
            async for event in engine.generate(chat(stream=True, **ask)):
                got.append(event)
        engine.restart()
        with pytest.raises(KINDS[kind]):
            await answer(engine, chat(**ask))
        engine.restart()
        assert (await engine.load()).running == 0
        assert [call.outcome for call in engine.calls] == ["failed", "failed"]
    tokens = min(after, 5) or (kind == "error_event")
    assert len(got) == (tokens + 1 if tokens else 0)  # the role comes with the first token


@pytest.mark.parametrize("profile", ["default", "zero"])
async def test_what_was_said_before_a_fault_comes_before_it(profile: str) -> None:
    """Two choices: the third token and the failure fall into one step, and both are told."""
    order = {"fail": "broken", "after_tokens": 3}
    got = []
    async with sim(profile) as engine:
        with pytest.raises(EngineBroken):
            async for event in engine.generate(chat(stream=True, n=2, sim=order)):
                got.append(event)
    assert len(got) == 2 + 3  # a role for each choice


@pytest.mark.parametrize("profile", ["default", "zero"])
async def test_an_ordered_abort_looks_like_an_end(profile: str) -> None:
    """Finish reason `abort` in an answer of status 200."""
    ask: dict[str, Any] = {"max_tokens": 6, "sim": {"fail": "abort", "after_tokens": 2}}
    async with sim(profile) as engine:
        whole = said(await answer(engine, chat(**ask)))
        streamed = said(await chunks(engine, chat(stream=True, **ask)))
    assert (whole.finish, streamed.finish) == ("abort", "abort")
    assert whole.text == streamed.text != ""


async def test_a_crash_takes_all_that_runs_along() -> None:
    """Neighbours break, newcomers find nobody, until the engine is started again."""
    async with sim("default") as engine:
        running = [asyncio.ensure_future(answer(engine, chat(**LONG))) for _ in range(3)]
        await until_running(engine, 3)
        with pytest.raises(EngineBroken):
            await answer(engine, chat(sim={"fail": "crash"}))
        ends = await asyncio.gather(*running, return_exceptions=True)
        assert [type(end) for end in ends] == [EngineBroken] * 3
        assert await engine.health() is False
        for asked in (engine.load(), engine.models(), answer(engine, chat())):
            with pytest.raises(EngineUnreachable):
                await asked
        engine.restart()
        assert await engine.health() is True
        assert said(await answer(engine, chat(max_tokens=2))).finish == "length"


async def test_an_engine_being_stopped_aborts_its_texts() -> None:
    """All choices end with `abort`; what waits ends too."""
    async with sim(replace(DEFAULT, slots=1)) as engine:
        running = [asyncio.ensure_future(answer(engine, chat(n=2, **LONG))) for _ in range(2)]
        await until_running(engine, 1)
        engine.abort_all()
        for got in await asyncio.gather(*running):
            assert [choice["finish_reason"] for choice in got["choices"]] == ["abort", "abort"]


async def test_closing_the_engine_breaks_what_runs() -> None:
    """Before it is started and after it is closed nobody is there."""
    engine = SimEngine()
    with pytest.raises(EngineUnreachable):
        await answer(engine, chat())
    await engine.start()
    running = asyncio.ensure_future(answer(engine, chat(**LONG)))
    await until_running(engine, 1)
    await engine.close()
    with pytest.raises(EngineBroken):
        await running
    assert await engine.health() is False


async def test_preemption_changes_no_text() -> None:
    """Under KV pressure every answer is what it would have been alone."""
    tight = replace(DEFAULT, num_blocks=40, max_model_len=600)
    asks = [
        chat(str(i), messages=[{"role": "user", "content": f"{i}"}], **{**LONG, "max_tokens": 400})
        for i in range(3)
    ]
    async with sim(tight, speed=200) as pressed, sim() as free:
        got = await asyncio.gather(*(answer(pressed, ask) for ask in asks))
        assert [said(g).text for g in got] == [said(await answer(free, ask)).text for ask in asks]
        assert (await pressed.load()).preemptions > 0


async def test_pooling_waits_for_a_slot_and_its_prefill() -> None:
    """Each input is a sequence of its own."""
    async with sim("default", speed=1) as engine:
        begin = perf_counter()
        got = await answer(engine, post("/v1/embeddings", input=[" word" * 1_000] * 2))
        took_s = perf_counter() - begin
        assert (len(got["data"]), engine.totals.prompt_tokens) == (2, 2_000)
    assert took_s > 0.1


async def test_an_instant_stream_lets_others_run() -> None:
    """A long text does not hold the event loop, however eager its reader is."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with sim() as engine:
        counter = asyncio.ensure_future(count())
        async with aclosing(
            engine.generate(chat(stream=True, max_tokens=640, ignore_eos=True))
        ) as s:
            async for _ in s:
                pass
        counter.cancel()
    assert turns >= 20


async def test_the_log_tells_each_call() -> None:
    """Once for each time it ran, with its tokens."""
    async with sim("default") as engine:
        await answer(engine, chat("a", max_tokens=3))
        await chunks(engine, chat("a", max_tokens=4, stream=True))
        with pytest.raises(EngineError):
            await answer(engine, EngineCall("b", "/v1/completions", b"{}", False))
        calls = [(call.id, call.outcome, call.output_tokens) for call in engine.calls]
        assert all(c.ended_s is not None and c.ended_s >= c.started_s for c in engine.calls)
    assert calls == [("a", "done", 3), ("a", "done", 4), ("b", "failed", 0)]


async def test_the_zero_profile_serves_thousands_a_second() -> None:
    """Small requests, in processor time, so that a busy machine does not matter."""
    async with sim() as engine:
        ask = chat(max_tokens=4)
        begin = process_time()
        for _ in range(500):
            await answer(engine, ask)
        per_s = 500 / (process_time() - begin)
    assert per_s > 2_000
