"""Resume: a stream that was cut off goes on, and its client reads the text it would have read."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.worker.desk import Desk
from tests.worker.resuming import (
    COMPLETIONS,
    CutEngine,
    chat,
    completion,
    read,
    start,
    text_of,
    without_empty,
)

from forebay_worker.engine import EngineBroken, EngineCall, EngineEvent, Traits
from forebay_worker.engine.sim import SimEngine

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("make", "usage"), [(chat, {"include_usage": True}), (completion, None), (chat, None)]
)
async def test_a_stream_cut_anywhere_goes_on_exactly(
    desk: Desk, make: Any, usage: dict[str, bool] | None
) -> None:
    """After each chunk of a text with characters of several bytes: the same events, once."""
    engine = await start(desk, CutEngine(desk))
    asked = make(stream_options=usage)
    whole, told = await read(desk, asked)
    assert "🙂" in text_of(whole)
    for cut in range(1, len(whole) + 1, 1 if usage else 5):
        engine.asked.clear()
        engine.cut = cut
        events, result = await read(desk, asked)
        assert without_empty(events) == without_empty(whole), cut
        assert result == told, cut
        assert [call.path for call in engine.asked[1:]] in ([], [asked.path], [COMPLETIONS]), cut


async def test_what_was_added_for_resume_is_taken_out(desk: Desk) -> None:
    """The client who did not ask for token ids gets the bytes of a stream that has none."""
    engine = await start(desk, CutEngine(desk))
    whole, _ = await read(desk, chat())
    plain, _ = await read(desk, chat(return_token_ids=False))
    assert whole == plain
    assert b'"return_token_ids":true' in engine.asked[0].body


async def test_ids_that_the_client_asked_for_stay_and_come_once(desk: Desk) -> None:
    """Cut at the end of a character: all ids, each once. Within one: an error event, no splice."""
    engine = await start(desk, CutEngine(desk))
    asked = chat(return_token_ids=True)
    whole, _ = await read(desk, asked)
    assert all(event["choices"][0].get("token_ids") for event in whole[1:])
    within = [n for n, event in enumerate(whole, 1) if n > 1 and not text_of([event])]
    assert within
    for cut in (2, 3, *within[:2]):
        engine.cut = cut
        events, result = await read(desk, asked)
        if cut in within:
            assert (events, result.reason) == (whole[:cut], "interrupted")
        else:
            assert events == whole


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"seed": 1, "temperature": 0.5},
        {"response_format": {"type": "json_object"}},
        {"guided_regex": "a+"},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"stop": ["."]},
        {"min_tokens": 3},
        {"presence_penalty": 0.1},
        {"repetition_penalty": 1.1},
        {"logprobs": True},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_what_cannot_go_on_exactly_ends_with_one_error(
    desk: Desk, fields: dict[str, Any]
) -> None:
    """The client keeps what it has read, and is told to repeat the request; no second call."""
    engine = await start(desk, CutEngine(desk, cut=3))
    events, result = await read(desk, chat(**fields))
    assert len(events) == 3
    assert (result.state, result.reason) == ("failed", "interrupted")
    assert json.loads(result.body)["error"]["code"] == "stream_interrupted"
    assert len(engine.asked) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 1, "temperature": 0},
        {"n": 1, "stop": [], "tools": [], "response_format": {"type": "text"}},
        {"temperature": 0.7, "top_p": 0.9, "logprobs": False, "presence_penalty": 0},
    ],
)
async def test_fields_that_keep_nothing_do_not_hinder(desk: Desk, fields: dict[str, Any]) -> None:
    engine = await start(desk, CutEngine(desk))
    whole, _ = await read(desk, chat(**fields))
    engine.cut = 5
    events, result = await read(desk, chat(**fields))
    assert (events, result.state) == (whole, "done")


async def test_without_token_ids_a_chat_goes_on_by_its_text(desk: Desk) -> None:
    """An engine that continues a last message: one clean text, one role, within the limit."""
    engine = await start(desk, CutEngine(desk, traits=Traits(continues_messages=True)))
    whole, told = await read(desk, chat())
    engine.cut = 6
    events, result = await read(desk, chat())
    assert text_of(events) == text_of(whole)
    roles = [event["choices"][0]["delta"].get("role") for event in events]
    assert roles == ["assistant"] + [None] * (len(events) - 1)
    assert result.state == "done"
    assert result.usage.prompt == told.usage.prompt
    (_, body) = (json.loads(call.body) for call in engine.asked[-2:])
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert body["messages"][-1] == {"role": "assistant", "content": text_of(events[:6])}
    assert body["max_tokens"] == 24 - 5


async def test_an_engine_of_unknown_kind_continues_completions_only(desk: Desk) -> None:
    """It is asked for nothing that it may not know; a chat that was cut off ends with an error."""
    engine = await start(desk, CutEngine(desk, cut=4, traits=Traits()))
    events, result = await read(desk, completion(ignore_eos=None))
    assert (result.state, len(engine.asked)) == ("done", 2)
    assert json.loads(engine.asked[1].body)["prompt"] == "line 53" + text_of(events[:4])
    assert not any(b"return_token_ids" in call.body for call in engine.asked)
    for asked in (chat(ignore_eos=None), completion(regex="a+"), completion(max_tokens=None)):
        engine.cut = 4
        _, result = await read(desk, asked)
        assert result.reason == "interrupted"


async def test_what_a_cut_stream_has_used_is_charged(desk: Desk) -> None:
    await start(desk, CutEngine(desk, cut=9))
    _, result = await read(desk, chat(n=2))
    assert result.reason == "interrupted"
    assert result.usage.output >= 6


async def test_an_engine_that_closes_after_its_last_word_has_ended(desk: Desk) -> None:
    """No `[DONE]`, yet finish reason and usage were there: nothing is asked again."""

    class Curt(CutEngine):
        async def generate(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
            async for event in super().generate(call):
                yield event
            raise EngineBroken("closed without [DONE]")

    engine = await start(desk, Curt(desk))
    for usage in (None, {"include_usage": True}):
        events, result = await read(desk, chat(stream_options=usage))
        assert (result.state, result.finish_reason) == ("done", "length")
        assert (events[-1].get("usage") is not None) == bool(usage)
    assert len(engine.asked) == 2


async def test_a_continuation_that_is_refused_ends_with_an_error_of_ours(desk: Desk) -> None:
    """The engine's 400 is about a prompt that the client never sent."""

    class Shrunk(CutEngine):
        def traits(self, model: str) -> Traits:
            return Traits(token_ids=True, max_tokens=1_000_000)

    engine = await start(desk, Shrunk(desk, cut=4))
    _, result = await read(desk, chat(max_tokens=None))
    assert len(engine.asked) == 2
    assert (result.state, result.reason) == ("failed", "interrupted")


async def test_an_aborted_end_is_not_passed_on(desk: Desk) -> None:
    """An engine that is being stopped says `abort`; the client reads the rest of the text."""

    class Stopped(CutEngine):
        async def generate(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
            seen = 0
            async for event in super().generate(call):
                yield event
                seen += 1
                if seen == 5 and len(self.asked) == 2:
                    self.abort_all()

    engine = await start(desk, Stopped(desk))
    asked = chat(stream_options={"include_usage": True})
    whole, told = await read(desk, asked)
    events, result = await read(desk, asked)
    assert len(engine.asked) == 3
    assert (events, result) == (whole, told)


async def test_drain_hands_a_stream_over(desk: Desk) -> None:
    """Given back at the end of the grace: another worker goes on, nobody is blamed."""
    worker, task = await desk.worker(SimEngine(speed=0.2), grace_s=0.05)
    (request_id,) = await desk.admit([chat()])
    await desk.until_chunks(request_id, 4)
    worker.drain.request("test")
    assert await task == 0
    await start(desk, CutEngine(desk))
    result = await desk.result(request_id)
    events = [json.loads(event) for _, event in (await desk.seen(request_id)).chunks]
    whole, told = await read(desk, chat())
    assert text_of(events) == text_of(whole)
    assert result == told
    shown = await desk.show(request_id)
    assert (shown.attempts, shown.crashes) == (0, 0)
