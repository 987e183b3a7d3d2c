"""Execute: what a client gets for every way in which an engine can answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest
from tests.worker.desk import CHAT, Desk
from tests.worker.scripted import (
    USAGE_CHUNK,
    Held,
    ScriptedEngine,
    answer,
    answers,
    breaks,
    chunk,
)

from forebay_shared.records import Envelope, Usage
from forebay_worker.engine import (
    Answer,
    Chunk,
    EngineBroken,
    EngineBusy,
    EngineCall,
    EngineEvent,
    EngineFailed,
    EngineRejected,
    EngineUnreachable,
)

pytestmark = pytest.mark.anyio

BAD = b'{"error": {"message": "too long", "type": "BadRequestError", "code": 400}}'


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


async def test_an_answer_passes_through_as_received(desk: Desk) -> None:
    """Body, usage and finish reason of an answer that does not stream reach the result."""
    engine = ScriptedEngine(answers)
    await desk.worker(engine)
    request_id = await desk.submit()
    result = await desk.result(request_id)
    assert (result.state, result.status, result.body) == ("done", 200, answer())
    assert (result.usage, result.finish_reason) == (Usage(7, 0, 3), "stop")
    assert engine.calls[0].asked.request_id == request_id
    assert engine.calls[0].asked.path == CHAT


async def test_a_body_that_does_not_stream_goes_to_the_engine_untouched(desk: Desk) -> None:
    """The engine gets the client's very bytes, however odd."""
    engine = ScriptedEngine(answers)
    await desk.worker(engine)
    body = b' {"model" : "m",\n "messages":[], "unknown": 1e2}'
    (request_id,) = await desk.admit([Envelope(CHAT, "m", body, headers={"traceparent": "00-1"})])
    await desk.result(request_id)
    assert engine.calls[0].asked.body == body
    assert engine.calls[0].asked.headers == {"traceparent": "00-1"}


async def test_usage_of_a_stream_is_asked_for_and_taken_out_again(desk: Desk) -> None:
    """The client who did not ask sees no usage; the result has it all the same."""
    engine = ScriptedEngine(answers)
    await desk.worker(engine)
    request_id = await desk.submit(stream=True)
    result = await desk.result(request_id)
    seen = await desk.seen(request_id)
    events = [event for _, event in seen.chunks]
    assert events == [chunk(role="assistant"), chunk("hel"), chunk("lo", finish="stop")]
    assert [offset for offset, _ in seen.chunks] == [1, 2, 3]
    assert seen.ended
    assert b'"include_usage":true' in engine.calls[0].asked.body
    assert (result.state, result.finish_reason, result.body) == ("done", "stop", b"")
    assert result.usage == Usage(7, 0, 3)


async def test_usage_that_the_client_asked_for_stays(desk: Desk) -> None:
    """Where nothing was added nothing is taken out, and the body stays as it was."""
    engine = ScriptedEngine(answers)
    await desk.worker(engine)
    body = b'{"stream":true,"stream_options":{"include_usage":true}}'
    (request_id,) = await desk.admit([Envelope(CHAT, "m", body, stream=True)])
    await desk.result(request_id)
    events = [event for _, event in (await desk.seen(request_id)).chunks]
    assert events[-1] == USAGE_CHUNK
    assert engine.calls[0].asked.body == body


async def test_a_refusal_of_the_engine_reaches_the_client(desk: Desk) -> None:
    """4xx ends the request with the engine's own status and body, without a second try."""

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        raise EngineRejected(400, "application/json", BAD)
        yield

    engine = ScriptedEngine(script)
    await desk.worker(engine)
    result = await desk.result(await desk.submit(stream=True))
    assert (result.state, result.status, result.body) == ("failed", 400, BAD)
    assert len(engine.calls) == 1


async def test_an_error_of_a_well_engine_is_an_attempt(desk: Desk) -> None:
    """5xx is tried `attempts` times, then the engine's answer is passed on."""

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        raise EngineFailed(500, "application/json", BAD)
        yield

    engine = ScriptedEngine(script)
    await desk.worker(engine)
    request_id = await desk.submit()
    result = await desk.result(request_id)
    assert (result.state, result.status, result.body) == ("failed", 500, BAD)
    assert len(engine.calls) == desk.settings.attempts
    assert (await desk.show(request_id)).crashes == 0


async def test_an_aborted_answer_is_no_success(desk: Desk) -> None:
    """Finish reason `abort` under 200 is a failed attempt, and the next one's answer counts."""
    first = True

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        nonlocal first
        text = answer()
        if first:
            first, text = False, text.replace(b'"stop"', b'"abort"')
        yield Answer(200, "application/json", text)

    engine = ScriptedEngine(script)
    await desk.worker(engine)
    request_id = await desk.submit()
    result = await desk.result(request_id)
    assert (result.state, result.body) == ("done", answer())
    assert (await desk.show(request_id)).attempts == 1


async def test_an_error_event_in_a_stream_is_passed_on(desk: Desk) -> None:
    """An error event after tokens ends the request as failed, with the engine's error."""

    delivered = asyncio.Event()

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        yield Chunk(chunk("hel"))
        await delivered.wait()
        raise EngineFailed(500, "application/json", BAD)

    engine = ScriptedEngine(script)
    await desk.worker(engine)
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 1)
    delivered.set()
    result = await desk.result(request_id)
    assert (result.state, result.status, result.body) == ("failed", 500, BAD)
    seen = await desk.seen(request_id)
    assert [event for _, event in seen.chunks] == [chunk("hel")]
    assert seen.ended
    assert len(engine.calls) == 1


async def test_a_stream_that_breaks_after_tokens_is_interrupted(desk: Desk) -> None:
    """What was delivered cannot be taken back: one error that says retry, and no second run."""

    delivered = asyncio.Event()

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        yield Chunk(chunk("hel"))
        await delivered.wait()
        raise EngineBroken("broken")

    engine = ScriptedEngine(script)
    await desk.worker(engine)
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 1)
    delivered.set()
    result = await desk.result(request_id)
    assert (result.state, result.reason, result.status) == ("failed", "interrupted", 502)
    assert code_of(result.body) == "stream_interrupted"
    assert len(engine.calls) == 1


async def test_a_stream_that_ends_by_abort_is_interrupted(desk: Desk) -> None:
    """An engine that is being stopped ends its streams like finished ones: they are not."""

    delivered = asyncio.Event()

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        yield Chunk(chunk("hel"))
        await delivered.wait()
        yield Chunk(chunk("", finish="abort"))

    await desk.worker(ScriptedEngine(script))
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 1)
    delivered.set()
    result = await desk.result(request_id)
    assert (result.state, result.reason) == ("failed", "interrupted")


async def test_a_stream_that_broke_before_its_first_token_runs_again(desk: Desk) -> None:
    """A role-only chunk is not a token: nothing was delivered, so the stream is whole."""
    first = True

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        nonlocal first
        yield Chunk(chunk(role="assistant"))
        if first:
            first = False
            raise EngineBroken("broken")
        yield Chunk(chunk("hello", finish="stop"))

    await desk.worker(ScriptedEngine(script))
    request_id = await desk.submit(stream=True)
    assert (await desk.result(request_id)).state == "done"
    events = [event for _, event in (await desk.seen(request_id)).chunks]
    assert events == [chunk(role="assistant"), chunk("hello", finish="stop")]


async def test_tokens_that_nobody_saw_are_forgotten(desk: Desk) -> None:
    """It broke in the turn of its first token: nothing of that goes out while health is asked."""
    first = True

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        nonlocal first
        if first:
            first = False
            yield Chunk(chunk("unseen"))
            raise EngineBroken("broken")
        yield Chunk(chunk("hello", finish="stop"))

    await desk.worker(ScriptedEngine(script), recheck_s=0.3)
    request_id = await desk.submit(stream=True)
    assert (await desk.result(request_id)).state == "done"
    events = [event for _, event in (await desk.seen(request_id)).chunks]
    assert events == [chunk("hello", finish="stop")]


async def test_a_request_that_comes_with_output_is_not_spliced(desk: Desk) -> None:
    """Another worker delivered chunks and died: the stream ends with one error, once."""
    engine = ScriptedEngine(Held())
    first, _ = await desk.worker(engine)
    request_id = await desk.submit(stream=True)
    await desk.until_chunks(request_id, 1)
    await desk.kill(first)
    other = ScriptedEngine(answers)
    await desk.worker(other)
    result = await desk.result(request_id)
    assert (result.state, result.reason) == ("failed", "interrupted")
    assert other.calls == []
    assert len((await desk.seen(request_id)).chunks) == 1


async def test_a_dead_engine_is_a_crash(desk: Desk) -> None:
    """An engine that is gone after it had accepted counts as a crash, not as an attempt."""
    engine = ScriptedEngine(answers)

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        engine.up = False
        raise EngineBroken("broken")
        yield

    engine.script = script
    await desk.worker(engine)
    request_id = await desk.submit()
    await engine.called.wait()
    await engine.calls[0].over.wait()
    await desk.until(request_id, "queued")
    shown = await desk.show(request_id)
    assert (shown.crashes, shown.attempts) == (1, 0)
    engine.script, engine.up = answers, True
    assert (await desk.result(request_id)).state == "done"


async def test_an_engine_stopped_with_its_worker_blames_nobody(desk: Desk) -> None:
    """While the worker drains a broken answer is neither attempt nor crash."""
    held = Held()

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        await held.release.wait()
        raise EngineBroken("broken")
        yield

    engine = ScriptedEngine(script)
    worker, task = await desk.worker(engine)
    request_id = await desk.submit()
    await engine.called.wait()
    worker.drain.request("test")
    held.release.set()
    assert await task == 0
    shown = await desk.show(request_id)
    assert (shown.state, shown.crashes, shown.attempts) == ("queued", 0, 0)


@pytest.mark.parametrize("error", [EngineUnreachable, EngineBusy])
async def test_a_call_that_was_not_accepted_burns_no_attempt(
    desk: Desk, error: type[Exception]
) -> None:
    """Refused calls are given back without blame; the worker pauses longer each time."""
    refusals = 4

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        if len(engine.calls) <= refusals:
            raise error("no")
        yield Answer(200, "application/json", answer())

    engine = ScriptedEngine(script)
    worker, _ = await desk.worker(engine)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    request_id = await desk.submit()
    assert (await desk.result(request_id)).state == "done"
    assert loop.time() - began_s > 0.1 * (1 + 2 + 4 + 8) * 2 / 3  # pauses double from 0.1 s
    shown = await desk.show(request_id)
    assert (shown.takes, shown.attempts, shown.crashes) == (refusals + 1, 0, 0)
    if error is EngineBusy:
        assert worker.capacity.limit < 4


async def test_an_unreadable_request_fails(desk: Desk) -> None:
    """Stored bytes that are no envelope end that request, and the next one is served."""
    await desk.worker(ScriptedEngine(answers))

    class Odd(Envelope):
        def head(self) -> bytes:
            return b"\xff{"

    odd, good = await desk.admit([Odd(CHAT, "m", b"{}"), Envelope(CHAT, "m", b"{}")])
    result = await desk.result(odd)
    assert (result.state, result.reason) == ("failed", "undecodable")
    assert (await desk.result(good)).state == "done"


async def test_a_fault_of_ours_is_an_attempt(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected exception ends neither the worker nor the request, and tells no prompt."""
    faults = 1

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        if len(engine.calls) <= faults:
            raise RuntimeError("a fault")
        yield Answer(200, "application/json", answer())

    engine = ScriptedEngine(script)
    await desk.worker(engine)
    request_id = await desk.submit(body={"messages": "secret prompt"})
    assert (await desk.result(request_id)).state == "done"
    assert (await desk.show(request_id)).attempts == 1
    assert "secret prompt" not in caplog.text


async def test_the_deadline_ends_the_engine_call(desk: Desk) -> None:
    """When the deadline has passed the engine is stopped and the request expires."""
    engine = ScriptedEngine(Held())
    worker, _ = await desk.worker(engine)
    request_id = await desk.submit(timeout_ms=300)
    await engine.called.wait()
    result = await desk.result(request_id)
    assert (result.state, result.reason) == ("expired", "deadline")
    await asyncio.wait_for(engine.calls[0].over.wait(), 1)
    assert engine.calls[0].how == "aborted"
    await asyncio.wait_for(worker.runs.empty.wait(), 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_too_long_an_answer_fails_as_such(redis_url: str, stream: bool) -> None:
    """Output past `result_bytes` stops the engine and names the reason."""
    desk = Desk(redis_url, Desk(redis_url).settings.model_copy(update={"result_bytes": 70_000}))
    await desk.open()

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        if not call.stream:
            yield Answer(200, "application/json", answer("x" * 80_000))
        for _ in range(9):
            yield Chunk(chunk("x" * 10_000))
        await asyncio.Event().wait()

    engine = ScriptedEngine(script)
    await desk.worker(engine)
    result = await desk.result(await desk.submit(stream=stream))
    assert (result.state, result.reason) == ("failed", "result_too_large")
    assert code_of(result.body) == "result_too_large"
    await engine.calls[0].over.wait()
    await desk.close()


async def test_an_engine_that_does_not_stream_when_asked_is_told_of(desk: Desk) -> None:
    """A stream answered whole fails clearly instead of hanging the reader."""

    async def script(call: EngineCall) -> AsyncGenerator[EngineEvent]:
        yield Answer(200, "application/json", answer())

    await desk.worker(ScriptedEngine(script))
    result = await desk.result(await desk.submit(stream=True))
    assert (result.state, result.status) == ("failed", 502)


async def test_a_broken_answer_is_an_attempt_and_the_last_words_are_ours(desk: Desk) -> None:
    """A connection that breaks each time ends as 502 in OpenAI's shape."""
    engine = ScriptedEngine(breaks)
    await desk.worker(engine)
    result = await desk.result(await desk.submit())
    assert (result.state, result.status) == ("failed", 502)
    assert code_of(result.body) == "engine_failed"
    assert len(engine.calls) == desk.settings.attempts
