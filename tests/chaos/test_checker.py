"""The checker calls a good run good, and each violation by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.chaos.checker import check
from tests.chaos.history import short_hash
from tests.chaos.ops import CHAT, Op, OpKind, draw_op
from tests.chaos.texts import expected_text

Json = dict[str, Any]
SEED = 5


def first(kind: OpKind) -> Op:
    return next(op for op in (draw_op(SEED, n) for n in range(1, 500)) if op.kind == kind)


ANSWER, STREAM, CANCEL, HANGUP = (first(k) for k in ("answer", "stream", "cancel", "hangup"))
IDS = {op.number: f"default.{op.number}" for op in (ANSWER, STREAM, CANCEL, HANGUP)}


def body_of(op: Op, text: str, *, chunk: bool = False) -> str:
    part = {"text": text}
    if op.path == CHAT:
        part = {"delta" if chunk else "message": {"content": text}}  # type: ignore[dict-item]
    return json.dumps({"choices": [part], "created": 1001 + 300})


@dataclass
class World:
    """A run in which an answer and a stream came, one was cancelled, and one client hung up."""

    events: list[Json] = field(default_factory=list)
    state: Json = field(default_factory=dict)

    def event(self, kind: str, op: Op | None = None, /, **fields: Any) -> None:
        named = {} if op is None else {"op": op.number}
        self.events.append({"at_s": 1.0, "type": kind, **named, **fields})

    def problems(self) -> str:
        return check(self.events, self.state).text()


def record(op: Op, state: str, **fields: str) -> Json:
    row = {"state": state, "class": "normal", "timeout": str(op.timeout_ms), "reason": ""}
    row |= {"stream": str(int(op.body["stream"])), "offset": "0", "takes": "1", "attempts": "0"}
    row |= {"lease": "id1/7", "taken": "1000000", "ended": "1003000", "crashes": "0"}
    return row | fields


def invoke(world: World, op: Op) -> None:
    world.event("invoke", op, kind=op.kind, path=op.path, body=op.body, timeout_ms=op.timeout_ms)


def accept(world: World, op: Op) -> None:
    invoke(world, op)
    world.event("accepted", op, id=IDS[op.number])


def finish(world: World, op: Op, state: str, text: str | None) -> None:
    world.event("seen", op, id=IDS[op.number], state=state)
    world.event("ok", op, id=IDS[op.number], state=state, text=text)


def streamed(world: World, op: Op) -> list[tuple[int, str]]:
    """The text in two chunks, told and stored."""
    text = expected_text(op.path, op.body)
    chunks = [body_of(op, part, chunk=True) for part in (text[:3], text[3:])]
    for number, chunk in enumerate(chunks, 1):
        world.event("chunk", op, n=number, hash=short_hash(chunk))
    return list(enumerate(chunks, 1))


@pytest.fixture
def world() -> World:
    one = World()
    one.event("run", seed=SEED, lease_ms=2000, reclaim_ms=500, sweep_ms=250)
    one.event("life", name="w1", pid=1, skew_s=300.0)
    one.event("life", name="w2", pid=2, skew_s=-50.0)
    one.event("worker", id="id1", pid=1)
    one.event("worker", id="id2", pid=2)
    accept(one, ANSWER)
    said = expected_text(ANSWER.path, ANSWER.body)
    finish(one, ANSWER, "done", said)
    accept(one, STREAM)
    chunks = streamed(one, STREAM)
    finish(one, STREAM, "done", expected_text(STREAM.path, STREAM.body))
    accept(one, CANCEL)
    finish(one, CANCEL, "cancelled", None)
    invoke(one, HANGUP)
    one.event("info", HANGUP, why="hung up")
    one.event("drained", ok=True)
    done, cancelled = '{"state":"done"}\n', '{"state":"cancelled"}\n'
    answer, stream, cancel, hangup = (IDS[op.number] for op in (ANSWER, STREAM, CANCEL, HANGUP))
    one.state = {
        "ledger": {"accepted": 4, "done": 2, "cancelled": 2},
        "queued": 0,
        "running": 0,
        "records": {
            answer: record(ANSWER, "done"),
            stream: record(STREAM, "done", offset="2"),
            cancel: record(CANCEL, "cancelled"),
            hangup: record(HANGUP, "cancelled"),
        },
        "results": {
            answer: done + body_of(ANSWER, said),
            stream: done,
            cancel: cancelled,
            hangup: cancelled,
        },
        "outputs": {stream: {"chunks": chunks, "ends": [[3, "done", 2]]}},
        "indexes": {"leases": 0, "delayed": 0, "deadlines": 0},
        "places": {"waiting": 0, "suspects": 0},
        "queues": {},
        "kept": [],
        "inboxes": 2,
        "dead": 0,
    }
    return one


def test_a_good_run_is_good(world: World) -> None:
    verdict = check(world.events, world.state)
    assert verdict.good, verdict.text()
    assert (verdict.attempted, verdict.acknowledged, verdict.recovered) == (4, 3, 1)


def test_waits_for_a_grant_are_told_apart_by_outages(world: World) -> None:
    """Two seconds of three were an outage: that wait is not one of the others."""
    world.event("granted", name="w1", id="x", wait_ms=2_100)
    world.events[-1]["at_s"] = 10.0
    world.event("granted", name="w1", id="y", wait_ms=3_000)
    world.events[-1]["at_s"] = 20.0
    world.event("fault", lane="redis", name="kill", target="redis", from_s=17.5, until_s=19.5)
    world.event("stalled", from_s=30.0, until_s=31.0)
    alive, away = [
        value
        for name, value in check(world.events, world.state).figures.items()
        if name.startswith("next grant")
    ]
    assert (alive["count"], alive["max"]) == (1, 2.1)
    assert (away["count"], away["max"]) == (1, 1.0)


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
    world.state["results"][IDS[ANSWER.number]] = '{"state":"done"}\n' + body_of(ANSWER, "no")


def say_twice(world: World) -> None:
    output = world.state["outputs"][IDS[STREAM.number]]
    output["chunks"].append((3, output["chunks"][1][1]))


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
    world.state["results"][request_id] = '{"state":"failed"}\n'
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


def mix_engines(world: World) -> None:
    chunk = world.state["outputs"][IDS[STREAM.number]]["chunks"][0]
    later = chunk[1].replace("1301", "1302")
    world.state["outputs"][IDS[STREAM.number]]["chunks"][0] = (1, later)


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
        (mix_engines, "a stream of two engines"),
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
