"""A small run as its history and state would tell it, for tests of the checker."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.checker import check
from tests.chaos.history import short_hash
from tests.chaos.ops import CHAT, Op, OpKind, draw_op
from tests.chaos.texts import expected_text

Json = dict[str, Any]
SEED = 5


def first(kind: OpKind, *, asks_usage: bool = False) -> Op:
    """The first operation of a kind; a chat stream that asks for usage where `asks_usage`."""
    for op in (draw_op(SEED, n) for n in range(1, 500)):
        if op.kind == kind and (
            not asks_usage or (op.path == CHAT and "stream_options" in op.body)
        ):
            return op
    raise AssertionError(f"no {kind} in 500 operations")


ANSWER, CANCEL, HANGUP = (first(kind) for kind in ("answer", "cancel", "hangup"))
STREAM = first("stream", asks_usage=True)
IDS = {op.number: f"default.{op.number}" for op in (ANSWER, STREAM, CANCEL, HANGUP)}


def body_of(op: Op, text: str) -> str:
    """An answer as the engine gives it."""
    part: Json = {"message": {"content": text}} if op.path == CHAT else {"text": text}
    return json.dumps({"choices": [part], "created": 1001 + 300, "usage": usage_of(op)})


def usage_of(op: Op) -> Json:
    return {"completion_tokens": op.body["max_tokens"]}


def chunks_of(op: Op, text: str) -> list[str]:
    """A stream's events: text in two chunks, usage in a third where it was asked for."""
    common = {"id": "cmpl-7", "created": 1001 + 300, "model": "sim"}
    parts: list[Json] = [{"text": text[:3]}, {"text": text[3:]}]
    if op.path == CHAT:
        parts = [{"delta": {"content": part["text"]}} for part in parts]
        parts[0]["delta"]["role"] = "assistant"
    chunks: list[Json] = [common | {"choices": [part]} for part in parts]
    if op.body.get("stream_options"):
        chunks.append(common | {"choices": [], "usage": usage_of(op)})
    return list(map(json.dumps, chunks))


def head_of(op: Op, state: str) -> str:
    """The first line of a stored result."""
    usage = {"output": op.body["max_tokens"]}
    return json.dumps({"state": state, "usage": usage, "finish_reason": "length"}) + "\n"


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
    """The text in chunks, told and stored."""
    chunks = chunks_of(op, expected_text(op.path, op.body))
    for number, chunk in enumerate(chunks, 1):
        world.event("chunk", op, n=number, hash=short_hash(chunk))
    return list(enumerate(chunks, 1))


def small_world() -> World:
    """A fresh one."""
    one = World()
    one.event(
        "run",
        seed=SEED,
        length_s=1_800,
        lease_ms=2000,
        reclaim_ms=500,
        sweep_ms=250,
        beside={"w4": "e1"},
    )
    one.event("life", name="w1", pid=1, skew_s=-90.0, library="a")
    one.event("clock", pid=1, skew_s=300.0)
    one.event("life", name="w2", pid=2, skew_s=-50.0, library="b")
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
    one.state = final_state(chunks)
    return one


def final_state(chunks: list[tuple[int, str]]) -> Json:
    """What the store holds in the end."""
    said = expected_text(ANSWER.path, ANSWER.body)
    answer, stream, cancel, hangup = (IDS[op.number] for op in (ANSWER, STREAM, CANCEL, HANGUP))
    return {
        "ledger": {"accepted": 4, "done": 2, "cancelled": 2},
        "queued": 0,
        "running": 0,
        "records": {
            answer: record(ANSWER, "done"),
            stream: record(STREAM, "done", offset="3"),
            cancel: record(CANCEL, "cancelled"),
            hangup: record(HANGUP, "cancelled"),
        },
        "results": {
            answer: head_of(ANSWER, "done") + body_of(ANSWER, said),
            stream: head_of(STREAM, "done"),
            cancel: head_of(CANCEL, "cancelled"),
            hangup: head_of(HANGUP, "cancelled"),
        },
        "outputs": {stream: {"chunks": chunks, "ends": [[4, "done", 3]]}},
        "indexes": {"leases": 0, "delayed": 0, "deadlines": 0},
        "places": {"waiting": 0, "suspects": 0},
        "queues": {},
        "kept": [],
        "inboxes": 2,
        "dead": 0,
        "libraries": 2,
    }
