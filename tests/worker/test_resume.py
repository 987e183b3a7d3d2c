"""Resume: a stream that was cut off goes on, and its client reads the text it would have read."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from tests.worker.desk import CHAT, Desk

from forebay_shared.calls import Emission, Take
from forebay_shared.records import Envelope, Result, Usage
from forebay_worker.engine import Chunk, EngineBroken, EngineCall, EngineEvent, Traits
from forebay_worker.engine.sim import SimEngine
from forebay_worker.marks import Marks, TokenIds

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
Events = list[dict[str, Any]]


class CutEngine(SimEngine):
    """A simulated engine whose next call breaks off after `cut` chunks; it remembers its calls.

    It waits until the client can have read them, if they can be read at all.
    """

    def __init__(self, desk: Desk, cut: int | None = None, traits: Traits | None = None) -> None:
        super().__init__("zero")
        self.desk = desk
        self.cut = cut
        self.asked: list[EngineCall] = []
        self._able = traits

    def traits(self, model: str) -> Traits:
        return super().traits(model) if self._able is None else self._able

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
        self.asked.append(call)
        cut, self.cut = self.cut, None
        passed: list[EngineEvent] = []
        async for event in super().generate(call):
            if len(passed) == cut:
                break
            yield event
            passed.append(event)
        if cut is not None:
            await self.desk.until_chunks(call.request_id, readable(passed))
            raise EngineBroken("cut")


def readable(passed: list[EngineEvent]) -> int:
    """How many of these chunks reach the client: not a role alone, not an end before its usage."""
    last = json.loads(passed[-1].data) if isinstance(passed[-1], Chunk) else {}
    if not last["choices"]:
        return len(passed) - 1
    (choice,) = last["choices"]
    return len(passed) - bool(choice["finish_reason"] or choice.get("delta", {}).get("role"))


def chat(**fields: Any) -> Envelope:
    messages = [{"role": "user", "content": "line 96"}]  # answered with characters of many bytes
    return envelope(CHAT, {"messages": messages, **fields})


def completion(**fields: Any) -> Envelope:
    return envelope(COMPLETIONS, {"prompt": "line 53", **fields})


def envelope(path: str, fields: dict[str, Any]) -> Envelope:
    body = {"model": "sim", "stream": True, "ignore_eos": True, "max_tokens": 24, **fields}
    raw = json.dumps(body, ensure_ascii=False).encode()
    return Envelope(path, "sim", raw, stream=body["stream"], progress=not body["stream"])


async def read(desk: Desk, asked: Envelope) -> tuple[Events, Result]:
    """The events of a stream to its end, without the time that each has, and its result."""
    (request_id,) = await desk.admit([asked])
    result = await desk.result(request_id)
    events = [json.loads(event) for _, event in (await desk.seen(request_id)).chunks]
    assert len({(event.pop("id"), event.pop("created")) for event in events}) <= 1
    return events, result


def text_of(events: Events) -> str:
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(one["text"] if "text" in one else one["delta"]["content"] for one in choices)


def without_empty(events: Events) -> Events:
    """Without chunks of a character that was not whole yet: these may come twice."""
    texts = [event for event in events if event["choices"]]
    idle = [e for e in texts if not text_of([e]) and not e["choices"][0]["finish_reason"]]
    return [event for event in events if event not in idle]


async def answer(desk: Desk, asked: Envelope) -> tuple[dict[str, Any], Result]:
    """The whole answer of a request that does not stream, without its time, and its result."""
    (request_id,) = await desk.admit([asked])
    result = await desk.result(request_id)
    body = json.loads(result.body)
    del body["id"], body["created"]
    return body, result


async def start(desk: Desk, engine: CutEngine) -> CutEngine:
    await desk.worker(engine, recheck_s=0.01)
    return engine


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
    events, result = await read(desk, completion())
    assert (result.state, len(engine.asked)) == ("done", 2)
    assert json.loads(engine.asked[1].body)["prompt"] == "line 53" + text_of(events[:4])
    assert not any(b"return_token_ids" in call.body for call in engine.asked)
    engine.cut = 4
    _, result = await read(desk, chat())
    assert result.reason == "interrupted"


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


@pytest.mark.parametrize("make", [chat, completion])
async def test_an_answer_whose_progress_is_kept_goes_on(desk: Desk, make: Any) -> None:
    """`X-Resume` without a stream: the answer of an engine that was never cut off."""
    engine = await start(desk, CutEngine(desk))
    plain = await answer(desk, replace(make(stream=False), progress=False))
    for cut in (None, 2, 9, 17):
        engine.asked.clear()
        engine.cut = cut
        body, result = await answer(desk, make(stream=False))
        choice, expected = (one["choices"][0] for one in (body, plain[0]))
        assert choice.get("message") == without_nulls(expected.get("message"))
        assert choice.get("text") == expected.get("text")
        assert (choice["finish_reason"], body["usage"]) == ("length", plain[0]["usage"])
        assert (result.usage, result.content_type) == (plain[1].usage, "application/json")
        assert len(engine.asked) == (1 if cut is None else 2)


def without_nulls(message: dict[str, Any] | None) -> dict[str, Any] | None:
    return message and {name: value for name, value in message.items() if value is not None}


async def test_kept_progress_that_cannot_go_on_begins_anew(desk: Desk) -> None:
    """Nobody has read any of it: no error, and no part of the first answer in the second."""

    class Changed(CutEngine):
        def traits(self, model: str) -> Traits:
            return Traits(token_ids=True) if not self.asked else Traits()

    engine = await start(desk, Changed(desk, cut=6))
    plain = await answer(desk, replace(chat(stream=False), progress=False))
    engine.asked.clear()
    engine.cut = 6
    body, result = await answer(desk, chat(stream=False))
    assert body == plain[0]
    assert (result.state, len(engine.asked)) == ("done", 2)


@pytest.mark.parametrize("usage", [None, {"include_usage": True}])
async def test_a_text_that_was_delivered_whole_only_needs_its_end(
    desk: Desk, usage: dict[str, bool] | None
) -> None:
    """Its worker died between the last chunk and the end: no engine is asked again."""
    engine = CutEngine(desk)
    worker, _ = await desk.worker(engine, serving=True)
    whole, told = await read(desk, chat(stream_options=usage))
    await desk.kill(worker)
    kept = len(whole) - bool(usage)
    (request_id,) = await desk.admit([chat(stream_options=usage)])
    await emit_as_dead(desk, request_id, chat(), kept)
    second = await start(desk, CutEngine(desk))
    result = await desk.result(request_id)
    events = [json.loads(event) for _, event in (await desk.seen(request_id)).chunks]
    assert len({(event.pop("id"), event.pop("created")) for event in events}) == 1
    assert events == whole
    assert (result, second.asked) == (told, [])


async def emit_as_dead(desk: Desk, request_id: str, asked: Envelope, count: int) -> None:
    """Take the request, emit the first `count` chunks of its answer and be gone."""
    (grant,) = (await desk.leases.take(Take("dead", 1, 1, 1, {"normal": 1}))).grants
    engine = SimEngine("zero")
    await engine.start()
    body = json.loads(asked.body) | {"return_token_ids": True}
    call = EngineCall(request_id, CHAT, json.dumps(body).encode(), stream=True)
    marks = Marks(TokenIds.ADDED)
    said = [
        marks.take(event.data) async for event in engine.generate(call) if isinstance(event, Chunk)
    ]
    await engine.close()
    emission = Emission(request_id, grant.call, 0, Usage(), said[:count])
    assert await desk.leases.emit("dead", [emission]) == ["ok"]
