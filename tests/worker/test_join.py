"""Joining: a pool serves one set of models, and a worker with others stays out."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.flow.processes import Child, until
from tests.worker.desk import Desk
from tests.worker.scripted import Held, ScriptedEngine, answers

from forebay_shared.calls import Operator
from forebay_shared.errors import Unusable
from forebay_worker.engine import EngineRejected
from forebay_worker.worker import Worker

pytestmark = pytest.mark.anyio


async def listed(desk: Desk) -> dict[str, list[str]]:
    """The models of each worker in the registry."""
    return {one["id"]: one["models"] for one in (await Operator(desk.library).status())["workers"]}


async def test_a_worker_with_other_models_ends_and_says_where_it_belongs(desk: Desk) -> None:
    """It takes nothing, its models are known to nobody, and it leaves the registry."""
    first, _ = await desk.worker(ScriptedEngine(answers, "a", "b"), classes=("high",))
    await first.pulse.joined.wait()
    request_id = await desk.submit()
    engine = ScriptedEngine(answers, "c", "d")
    worker, task = await desk.worker(engine)
    with pytest.raises(Unusable) as refused:
        await asyncio.wait_for(task, 5)
    for word in ("c, d", "a, b", "pool default", "--pool"):
        assert word in str(refused.value)
    assert (engine.calls, await desk.state(request_id)) == ([], "queued")
    assert await listed(desk) == {first.id: ["a", "b"]}
    assert await desk.redis.zscore(desk.keys.models, "c") is None
    await desk.kill(worker)


async def test_some_models_in_common_are_warned_of(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """It serves, since most requests may be for those; the operator hears of the others."""
    first, _ = await desk.worker(ScriptedEngine(answers, "a", "b"))
    await first.pulse.joined.wait()
    second, _ = await desk.worker(ScriptedEngine(answers, "b", "c"))
    await second.pulse.joined.wait()
    (warning,) = (one for one in caplog.records if one.levelno == logging.WARNING)
    assert warning.getMessage() == "models differ"
    assert warning.fields == {"ours": "b, c", "theirs": "a, b"}  # type: ignore[attr-defined]
    third, _ = await desk.worker(ScriptedEngine(answers, "c", "b", "a"))
    await third.pulse.joined.wait()


async def test_the_same_models_join_silently(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    for models in (("a", "b"), ("b", "a")):
        worker, _ = await desk.worker(ScriptedEngine(answers, *models))
        await worker.pulse.joined.wait()
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_a_worker_that_drains_keeps_no_other_out(desk: Desk) -> None:
    """A pool changes its models by replacing its workers."""
    held = Held()
    engine = ScriptedEngine(held, "a")
    first, _ = await desk.worker(engine)
    await desk.submit()
    await engine.called.wait()
    first.drain.request("test")
    await first.registry.register()
    second, _ = await desk.worker(ScriptedEngine(answers, "b"))
    await asyncio.wait_for(second.pulse.joined.wait(), 5)
    assert await listed(desk) == {first.id: ["a"], second.id: ["b"]}
    held.release.set()


async def joined_or_ended(worker: Worker, task: asyncio.Task[int]) -> None:
    joined = asyncio.create_task(worker.pulse.joined.wait())
    await asyncio.wait([joined, task], return_when=asyncio.FIRST_COMPLETED)
    joined.cancel()


async def test_of_two_that_come_together_not_both_stay(desk: Desk) -> None:
    """Whichever registers later finds the other."""
    for _ in range(5):
        pairs = [
            await desk.worker(ScriptedEngine(answers, name), serving=False) for name in ("a", "b")
        ]
        await asyncio.gather(*(joined_or_ended(*pair) for pair in pairs))
        assert sum(worker.pulse.joined.is_set() for worker, _ in pairs) <= 1
        for worker, task in pairs:
            if task.done():
                assert isinstance(task.exception(), Unusable)
            await desk.kill(worker)
        await desk.redis.flushall()


async def test_nothing_is_taken_before_the_comparison(desk: Desk) -> None:
    """An engine that comes up later is compared then; until then requests wait."""
    engine = ScriptedEngine(answers, "a")
    engine.up = False
    worker, _ = await desk.worker(engine)
    request_id = await desk.submit()
    await worker.registry.register()
    assert await listed(desk) == {worker.id: []}
    assert (await desk.state(request_id), worker.gate.free) == ("queued", 0)
    engine.up = True
    assert (await desk.result(request_id)).state == "done"
    assert await listed(desk) == {worker.id: ["a"]}


class Silent(ScriptedEngine):
    """An engine that has no list of models."""

    async def models(self) -> list[str]:
        raise EngineRejected(404, "text/plain", b"")


async def test_an_engine_without_a_list_joins(desk: Desk) -> None:
    """Nothing can be compared, so nothing can be held against it."""
    first, _ = await desk.worker(ScriptedEngine(answers, "a"))
    await first.pulse.joined.wait()
    await desk.kill(first)
    await desk.worker(Silent(answers))
    assert (await desk.result(await desk.submit())).state == "done"


async def test_the_process_ends_with_a_clear_line(desk: Desk, tmp_path: Path) -> None:
    """One event names both sets and the option; the exit code is not 0."""
    first, _ = await desk.worker(ScriptedEngine(answers, "a"))
    await first.pulse.joined.wait()
    child = Child("forebay_worker", ["--redis", desk.url, "--sim-model", "b"], tmp_path / "log")

    async def ended() -> bool:
        return child.code is not None

    await until(ended, 20, "the worker ended")
    assert child.code == 1
    (line,) = [line for line in child.log.read_text().splitlines() if "--pool" in line]
    assert '"this engine serves b, but the workers of pool default serve a;' in line
