"""Texts: at the client, in the store, as a replica assembles them, against the engine's own."""

from __future__ import annotations

import json

from tests.chaos.case import Case, Json
from tests.chaos.history import Event, short_hash
from tests.chaos.reading import text_of
from tests.chaos.verdict import Verdict


def check_stored_texts(case: Case, verdict: Verdict) -> None:
    """What is stored of a request that is done is what the engine says to it, whole."""
    for request_id, record in case.records.items():
        op = case.op_of(request_id)
        if op is None or record["state"] != "done":
            continue
        if record["stream"] == "1":
            _check_output(case, verdict, request_id, record)
            text = _output_text(case, request_id)
        else:
            text = _result_text(case.state["results"].get(request_id, ""))
        if text != case.expected(op):
            said = f"{request_id}: {text[:60]!r}… is not {case.expected(op)[:60]!r}…"
            verdict.wrong("a stored text differs", said)


def _check_output(case: Case, verdict: Verdict, request_id: str, record: Json) -> None:
    """Offsets without a gap, and one end mark behind them."""
    output = case.state["outputs"].get(request_id, {"chunks": [], "ends": []})
    offsets = [offset for offset, _ in output["chunks"]]
    count = len(offsets)
    whole = offsets == list(range(1, count + 1)) and int(record["offset"]) == count
    ends = [tuple(end) for end in output["ends"]]
    if not whole or ends != [(count + 1, record["state"], count)]:
        said = f"{request_id}: offset {record['offset']}, chunks {offsets}, ends {ends}"
        verdict.wrong("an output is not whole", said)


def _output_text(case: Case, request_id: str) -> str:
    chunks = case.state["outputs"].get(request_id, {"chunks": []})["chunks"]
    return "".join(text_of(json.loads(event)) for _, event in chunks)


def _result_text(result: str) -> str:
    body = result.partition("\n")[2]
    return text_of(json.loads(body)) if body else ""


def check_client_texts(case: Case, verdict: Verdict) -> None:
    """Clients, and those who read everything at the end, got the engine's text, or its begin."""
    for op in case.ops:
        for event in case.by_op[op]:
            if event["type"] not in ("ok", "read") or event.get("text") is None:
                continue
            said = f"operation {op}: {event}"
            if event["state"] == "done" and event["text"] != case.expected(op):
                verdict.wrong("a client's text differs", said)
            elif not case.expected(op).startswith(event["text"]):
                verdict.wrong("a client's text is spliced", said)


def check_streams(case: Case, verdict: Verdict) -> None:
    """Events come once, in order, as stored; a stream that cannot go on says so once."""
    for request_id, op in case.acknowledged.items():
        if case.kind_of(op) in ("stream", "follow"):
            _check_events(case, verdict, request_id, op)
            _check_errors(case, verdict, request_id, op)


def _check_events(case: Case, verdict: Verdict, request_id: str, op: int) -> None:
    chunks = [event for event in case.by_op[op] if event["type"] == "chunk"]
    if [event["n"] for event in chunks] != list(range(1, len(chunks) + 1)):
        verdict.wrong("a client's events are not in order", f"operation {op}")
    stored = dict(case.state["outputs"].get(request_id, {"chunks": []})["chunks"])
    for event in chunks:
        if event["hash"] != short_hash(stored.get(event["n"], "")):
            verdict.wrong("a client's event is not the stored one", f"{op}: {event}")


def _check_errors(case: Case, verdict: Verdict, request_id: str, op: int) -> None:
    """One error event where the request did not end well; a replica that stops may say so, too."""
    events = case.by_op[op]
    if not any(event["type"] == "ok" for event in events):
        return
    state = case.records.get(request_id, {}).get("state")
    errors, least = _count(events, "error"), int(state != "done")
    # A stream's reader asks for the state after an error; a follower reads on after each.
    most = least + _count(events, "break") if case.kind_of(op) == "follow" else 1
    if not least <= errors <= most:
        verdict.wrong("not one error event", f"operation {op}: {errors}, {state}")


def _count(events: list[Event], kind: str) -> int:
    return sum(event["type"] == kind for event in events)
