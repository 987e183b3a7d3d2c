"""Resume where a chunk ends within a character, or all of the text was there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from tests.worker.desk import CHAT, Desk
from tests.worker.resuming import CutEngine, chat, completion, read, start, text_of

from forebay_shared.calls import Emission, Take
from forebay_shared.records import Envelope, Usage
from forebay_worker.engine import Chunk, EngineCall, EngineEvent, sim_text
from forebay_worker.engine.sim import SimEngine
from forebay_worker.marks import Marks, TokenIds

pytestmark = pytest.mark.anyio


class HastyEngine(SimEngine):
    """Puts two tokens into each chunk, so that a chunk may end within a character."""

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
        first: dict[str, Any] | None = None
        alone = True  # the first token, or pairs would never part a character
        async for event in super().generate(call):
            assert isinstance(event, Chunk)
            chunk = json.loads(event.data)
            plain = chunk["choices"] and "role" not in chunk["choices"][0].get("delta", {})
            if first is None and plain and not chunk["choices"][0]["finish_reason"]:
                if not alone:
                    first = chunk
                    continue
                alone = False
            if first is not None and plain:
                chunk = merged(first, chunk)
            elif first is not None:
                yield Chunk(json.dumps(first).encode())
            first = None
            yield Chunk(json.dumps(chunk).encode())

    async def text_of(self, model: str, token_ids: Sequence[int]) -> str:
        said = "".join(TEXTS[one] for one in token_ids)
        return said.replace("half 🙂", " 🙂").replace("half", "\ufffd")


class CutHastyEngine(CutEngine, HastyEngine):
    """Breaks off between such chunks."""


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    (first,), (second,) = one["choices"], other["choices"]
    both = {"token_ids": first["token_ids"] + second["token_ids"]}
    if "text" in second:
        both["text"] = first["text"] + second["text"]
        both["prompt_token_ids"] = first["prompt_token_ids"]
    else:
        both["delta"] = {"content": first["delta"]["content"] + second["delta"]["content"]}
    return {**other, "choices": [{**second, **both}]}


TEXTS = {token.id: token.text for token in sim_text._SPEECH}
HALF = sim_text._EMOJI[0].id
TEXTS |= {HALF: "half", sim_text._EMOJI[1].id: " 🙂"}


@pytest.mark.parametrize("make", [chat, completion])
async def test_a_chunk_that_ends_within_a_character_is_cut_to_its_text(
    desk: Desk, make: Any
) -> None:
    """The engine is asked what the tokens say; those of a character to come are asked again."""
    engine = await start(desk, CutHastyEngine(desk))
    whole, told = await read(desk, make())
    for cut in range(2, 13):
        engine.cut = cut
        events, result = await read(desk, make())
        assert text_of(events) == text_of(whole), cut
        assert result == told, cut
        # A real engine that goes on within a character repeats what was before it.
        assert json.loads(engine.asked[-1].body)["prompt"][-1] != HALF, cut


async def test_a_drain_while_it_looks_where_to_go_on_hands_it_over(desk: Desk) -> None:
    """What was delivered is not read back yet: another worker can do that as well."""

    class Mute(CutEngine, HastyEngine):
        asks = asyncio.Event()

        async def text_of(self, model: str, token_ids: Sequence[int]) -> str | None:
            self.asks.set()
            await asyncio.Event().wait()
            return None

    engine = Mute(desk)
    worker, task = await desk.worker(engine, recheck_s=0.01)
    engine.cut = 3
    (request_id,) = await desk.admit([chat()])
    await engine.asks.wait()
    worker.drain.request("test")
    worker.drain.request("test")
    assert await task == 0
    await start(desk, CutHastyEngine(desk))
    result = await desk.result(request_id)
    whole, told = await read(desk, chat())
    events = [json.loads(event) for _, event in (await desk.seen(request_id)).chunks]
    assert (text_of(events), result) == (text_of(whole), told)


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
