"""An end that the library refuses as such must neither block the others nor be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from redis.exceptions import ResponseError
from tests.worker.desk import CHAT, Desk
from tests.worker.scripted import ScriptedEngine, answers

from forebay_shared.calls import Ending, Leases, Take, Taken
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
