"""An end that the library refuses as such must neither block the others nor be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from redis.exceptions import ResponseError
from tests.worker.desk import CHAT, Desk
from tests.worker.scripted import Held, ScriptedEngine, answers

from forebay_shared.calls import Ending, Leases, Library, Take, Taken
from forebay_shared.calls.library import Call
from forebay_shared.records import Envelope

pytestmark = pytest.mark.anyio


class Fastidious(Leases):
    """Refuses the ends of one request, a few times."""

    refused_id = ""
    refusals = 4

    async def finish(self, worker: str, endings: Sequence[Ending]) -> list[str]:
        self._look_at(endings)
        return await super().finish(worker, endings)

    async def finish_take(self, endings: Sequence[Ending], take: Take) -> tuple[list[str], Taken]:
        self._look_at(endings)
        return await super().finish_take(endings, take)

    def _look_at(self, endings: Sequence[Ending]) -> None:
        if self.refusals and any(one.request_id == self.refused_id for one in endings):
            self.refusals -= 1
            raise ResponseError("BADCALL argument 3 is not a number")


async def test_a_refused_end_is_a_failed_attempt_and_spares_its_neighbours(desk: Desk) -> None:
    """The others end, the refused one runs again, and the open take is repeated as it was."""
    engine = ScriptedEngine(answers)
    worker, _ = await desk.worker(engine, slots=8)
    leases = worker.taker._leases = Fastidious(desk.library)
    ids = await desk.admit([Envelope(CHAT, "m", b'{"model":"m"}')] * 8)
    leases.refused_id = ids[3]
    assert [(await desk.result(one)).state for one in ids] == ["done"] * 8
    shown = [await desk.show(one) for one in ids]
    assert [one.attempts for one in shown] == [0, 0, 0, 2, 0, 0, 0, 0]
    assert len(engine.calls) == 10
    await asyncio.wait_for(worker.runs.empty.wait(), 1)


class Garbling(Library):
    """Spoils one end of the first pair of finish and take that carries any."""

    garbled = False

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 2 and calls[0][0] == "finish" and not self.garbled:
            self.garbled = True
            (step, arguments), take = calls
            return await super()._send([(step, [*arguments[:-1], "many"]), take])
        return await super()._send(calls)


async def test_a_take_that_goes_with_a_refused_end_loses_nothing(desk: Desk) -> None:
    """They are two calls: the ends are told one by one, and what was granted beside them runs."""
    held = Held()
    engine = ScriptedEngine(held)
    worker, _ = await desk.worker(engine, slots=8)
    library = Garbling(desk.redis)
    worker.taker._leases = Leases(library)
    ids = await desk.admit([Envelope(CHAT, "m", b'{"model":"m"}')] * 16)
    while len(engine.calls) < 8:
        engine.called.clear()
        await engine.called.wait()
    engine.script = answers
    held.release.set()
    assert [(await desk.result(one)).state for one in ids] == ["done"] * 16
    assert library.garbled
    shown = [await desk.show(one) for one in ids]
    assert {(one.takes, one.attempts, one.crashes) for one in shown} == {(1, 0, 0)}
    assert len(engine.calls) == 16
    await asyncio.wait_for(worker.runs.empty.wait(), 1)


class Garbled(Leases):
    """Carries a call out and then loses its answer to an error that is not Redis being away."""

    garbled = False

    async def finish_take(self, endings: Sequence[Ending], take: Take) -> tuple[list[str], Taken]:
        answer = await super().finish_take(endings, take)
        if answer[1].grants and not self.garbled:
            self.garbled = True
            raise ResponseError("an answer that cannot be read")
        return answer


async def test_an_open_take_is_repeated_after_any_error(desk: Desk) -> None:
    """What the unread answer granted is found by the same call number: each request runs once."""
    engine = ScriptedEngine(answers)
    worker, _ = await desk.worker(engine, slots=1)
    leases = worker.taker._leases = Garbled(desk.library)
    ids = await desk.admit([Envelope(CHAT, "m", b'{"model":"m"}')] * 4)
    assert [(await desk.result(one)).state for one in ids] == ["done"] * 4
    assert leases.garbled
    assert [(await desk.show(one)).takes for one in ids] == [1] * 4
    assert len(engine.calls) == 4
