"""Requests that do not stream and keep their progress all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.worker.desk import Desk
from tests.worker.resuming import CutEngine, answer, chat, completion, start

from forebay_worker.engine import Traits

pytestmark = pytest.mark.anyio


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


async def test_a_continuation_that_is_refused_begins_anew(desk: Desk) -> None:
    """The engine's 400 is about our own question, and the client has read nothing."""

    class Shrunk(CutEngine):
        def traits(self, model: str) -> Traits:
            return Traits(token_ids=True, max_tokens=1_000_000)

    engine = await start(desk, Shrunk(desk))
    plain = await answer(desk, replace(chat(stream=False), progress=False))
    engine.asked.clear()
    engine.cut = 4
    body, result = await answer(desk, chat(stream=False, max_tokens=None))
    assert (result.state, len(engine.asked)) == ("done", 3)
    assert body["choices"][0]["message"]["content"].startswith(text(plain[0]))


def text(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["message"]["content"])
