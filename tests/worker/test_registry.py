"""The registry: what it shows of a worker, and how settings reach it."""

from __future__ import annotations

import asyncio

import pytest
from tests.worker.desk import Desk
from tests.worker.scripted import ScriptedEngine, answers

from forebay_shared.calls import Operator
from forebay_shared.keys import POOLS
from forebay_shared.settings import ClassSettings

pytestmark = pytest.mark.anyio


async def test_a_worker_is_listed_with_what_it_serves(desk: Desk) -> None:
    """State, slots, classes and models; its pool is named and its model known."""
    worker, _ = await desk.worker(ScriptedEngine(answers), slots=3, classes=("high", "low"))
    await worker.pulse.joined.wait()
    await worker.registry.register()
    (row,) = (await Operator(desk.library).status())["workers"]
    assert row["id"] == worker.id
    assert (row["state"], row["slots"], row["held"]) == ("serving", 3, 0)
    assert (row["classes"], row["models"]) == (["high", "low"], ["m"])
    assert await desk.redis.zrange(POOLS, 0, -1) == [b"default"]
    assert await desk.redis.zscore(desk.keys.models, "m") is not None


async def test_names_of_workers_never_repeat(desk: Desk) -> None:
    """Two workers started at once on one host have different names."""
    first, _ = await desk.worker(ScriptedEngine(answers))
    second, _ = await desk.worker(ScriptedEngine(answers))
    assert first.id != second.id


async def test_changed_settings_are_read_again(desk: Desk) -> None:
    """The epoch that comes back from registering tells that they have changed."""
    worker, _ = await desk.worker(ScriptedEngine(answers))
    operator = Operator(desk.library)
    settings, epoch = await operator.settings()
    changed = settings.model_copy(update={"renew_ms": 123})
    await operator.change_settings(changed, epoch)
    await worker.registry.register()
    assert worker.rules.settings == changed


async def test_a_class_added_later_is_served_at_once(desk: Desk) -> None:
    """An idle worker hears the bells of a new class as soon as it knows of it."""
    worker, _ = await desk.worker(ScriptedEngine(answers))
    await desk.result(await desk.submit())
    operator = Operator(desk.library)
    settings, epoch = await operator.settings()
    classes = (*settings.classes, ClassSettings(name="added"))
    await operator.change_settings(settings.model_copy(update={"classes": classes}), epoch)
    await worker.registry.register()
    async with asyncio.timeout(3):  # a blocked read lasts 10 s
        assert (await desk.result(await desk.submit(class_name="added"))).state == "done"


async def test_nothing_registers_a_worker_that_has_left(desk: Desk) -> None:
    """A registration that comes late must not bring back a name that nobody renews."""
    worker, _ = await desk.worker(ScriptedEngine(answers))
    await worker.registry.register()
    await worker.registry.leave(worker.id)
    await worker.registry.register()
    assert (await Operator(desk.library).status())["workers"] == []


async def test_an_engine_that_is_down_keeps_its_models_listed(desk: Desk) -> None:
    """Models as last told: clients are not sent away for a restart of the engine."""
    engine = ScriptedEngine(answers)
    worker, _ = await desk.worker(engine)
    await worker.pulse.joined.wait()
    engine.up = False
    await worker.registry.register()
    (row,) = (await Operator(desk.library).status())["workers"]
    assert row["models"] == ["m"]
