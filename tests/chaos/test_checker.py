"""The checker calls a good run good, and each violation by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy

import pytest
from tests.chaos.checker import check
from tests.chaos.history import short_hash
from tests.chaos.world import (
    ANSWER,
    CANCEL,
    IDS,
    STREAM,
    Json,
    World,
    body_of,
    head_of,
    record,
    small_world,
)


@pytest.fixture
def world() -> World:
    return small_world()


def test_a_good_run_is_good(world: World) -> None:
    verdict = check(world.events, world.state)
    assert verdict.good, verdict.text()
    assert (verdict.attempted, verdict.acknowledged, verdict.recovered) == (4, 3, 1)


def lose(world: World) -> None:
    del world.state["records"][IDS[ANSWER.number]]
    del world.state["results"][IDS[ANSWER.number]]


def leave_running(world: World) -> None:
    world.state["records"][IDS[ANSWER.number]]["state"] = "running"


def invent(world: World) -> None:
    world.state["records"]["default.x"] = record(ANSWER, "done", timeout="1")


def repeat(world: World) -> None:
    world.state["records"]["default.x"] = record(ANSWER, "done")
    world.state["results"]["default.x"] = world.state["results"][IDS[ANSWER.number]]


def forget_result(world: World) -> None:
    del world.state["results"][IDS[CANCEL.number]]


def count_twice(world: World) -> None:
    world.state["ledger"]["done"] = 3


def change_mind(world: World) -> None:
    world.event("seen", CANCEL, id=IDS[CANCEL.number], state="done")


def store_other_text(world: World) -> None:
    world.state["results"][IDS[ANSWER.number]] = head_of(ANSWER, "done") + body_of(ANSWER, "no")


def say_twice(world: World) -> None:
    output = world.state["outputs"][IDS[STREAM.number]]
    output["chunks"].append((4, output["chunks"][1][1]))


def skip_event(world: World) -> None:
    world.events = [e for e in world.events if (e["type"], e.get("n")) != ("chunk", 1)]


def swap_event(world: World) -> None:
    next(e for e in world.events if e["type"] == "chunk")["hash"] = "another"


def splice(world: World) -> None:
    next(e for e in world.events if e.get("text"))["text"] += " and more"


def fail_silently(world: World) -> None:
    fail_stream(world)


def fail_stream(world: World, errors: int = 0) -> None:
    """As if the stream had been interrupted after its first chunk."""
    request_id = IDS[STREAM.number]
    world.state["records"][request_id] |= {"state": "failed", "reason": "interrupted"}
    world.state["results"][request_id] = head_of(STREAM, "failed")
    world.state["ledger"] |= {"done": 1, "failed": 1}
    for event in world.events:
        if event.get("id") == request_id and event["type"] in ("seen", "ok"):
            event |= {"state": "failed", "text": None}
    for _ in range(errors):
        world.event("error", STREAM, code="stream_interrupted")


def fail_twice(world: World) -> None:
    fail_stream(world, errors=2)


def lose_lease(world: World) -> None:
    """As if another had taken it, and the first owner's result were stored even so."""
    world.state["records"][IDS[ANSWER.number]]["lease"] = "id2/9"


def chunk_of(world: World, number: int) -> Json:
    """The stored chunk of that number, to be changed; `put_chunk` stores it and tells it anew."""
    return dict(json.loads(world.state["outputs"][IDS[STREAM.number]]["chunks"][number - 1][1]))


def put_chunk(world: World, number: int, chunk: Json) -> None:
    raw = json.dumps(chunk)
    world.state["outputs"][IDS[STREAM.number]]["chunks"][number - 1] = (number, raw)
    for event in world.events:
        if event["type"] == "chunk" and event["n"] == number:
            event["hash"] = short_hash(raw)


def change_id(world: World) -> None:
    put_chunk(world, 2, chunk_of(world, 2) | {"id": "cmpl-8"})


def change_created(world: World) -> None:
    put_chunk(world, 2, chunk_of(world, 2) | {"created": 1302})


def say_role_again(world: World) -> None:
    chunk = chunk_of(world, 2)
    chunk["choices"][0]["delta"]["role"] = "assistant"
    put_chunk(world, 2, chunk)


def miscount_told(world: World) -> None:
    put_chunk(world, 3, chunk_of(world, 3) | {"usage": {"completion_tokens": 1}})


def hide_usage(world: World) -> None:
    put_chunk(world, 3, {k: v for k, v in chunk_of(world, 3).items() if k != "usage"})


def miscount_stored(world: World) -> None:
    result = json.loads(world.state["results"][IDS[STREAM.number]])
    result["usage"]["output"] += 1
    world.state["results"][IDS[STREAM.number]] = json.dumps(result) + "\n"


def cancel_unasked(world: World) -> None:
    world.state["records"][IDS[ANSWER.number]]["state"] = "cancelled"


def fail_answer(world: World) -> None:
    world.state["records"][IDS[ANSWER.number]]["state"] = "failed"


def leave_key(world: World) -> None:
    world.state["kept"].append("sizes:normal")


def die(world: World) -> None:
    world.event("died", name="w1", code=1, log="Traceback")


def complain(world: World) -> None:
    world.event("logged", name="p1", line="Traceback (most recent call last):")


def not_ready(world: World) -> None:
    world.event("unready", name="w1", why="no answer")


def not_drain(world: World) -> None:
    world.events = [e for e in world.events if e["type"] != "drained"]


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        (lose, "BAD lost"),
        (leave_running, "BAD lost"),
        (invent, "BAD unexpected"),
        (repeat, "BAD duplicated"),
        (forget_result, "a record has no result"),
        (count_twice, "the ledger does not count the records"),
        (change_mind, "a terminal state changed"),
        (store_other_text, "a stored text differs"),
        (say_twice, "an output is not whole"),
        (skip_event, "a client's events are not in order"),
        (swap_event, "a client's event is not the stored one"),
        (splice, "a client's text differs"),
        (fail_silently, "not one error event"),
        (fail_twice, "not one error event"),
        (lose_lease, "written by another than the lease's owner"),
        (change_id, "a stream has several of `id`"),
        (change_created, "a stream has several of `created`"),
        (say_role_again, "a stream's role is not told once and first"),
        (miscount_told, "usage or finish reason is wrong"),
        (miscount_stored, "usage or finish reason is wrong"),
        (hide_usage, "usage is not told once where it was asked for"),
        (not_ready, "a process did not get ready"),
        (cancel_unasked, "cancelled for no reason"),
        (fail_answer, "failed for no reason"),
        (leave_key, "keys without a TTL are left"),
        (die, "a process died by itself"),
        (complain, "a process logged an error"),
        (not_drain, "the queue did not drain"),
    ],
)
def test_a_violation_is_named(world: World, harm: Callable[[World], None], name: str) -> None:
    harm(world)
    said = world.problems()
    assert name in said and said.endswith("BAD"), said


def test_an_interrupted_stream_with_one_error_event_is_good(world: World) -> None:
    fail_stream(world, errors=1)
    assert world.problems().endswith("good")


def test_the_checker_changes_nothing(world: World) -> None:
    before = deepcopy(world.state)
    world.problems()
    assert world.state == before
