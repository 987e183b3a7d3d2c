"""What must hold of a run, apart from its texts; each check notes what it finds in the verdict."""

from __future__ import annotations

import json
from collections import Counter
from signal import SIGTERM

from tests.chaos.case import Case, Json
from tests.chaos.verdict import Verdict

from forebay_shared.records import TERMINAL

SURE = (400, 409, 410, 422)
"""Statuses that no request of these clients deserves."""
LEAVE = ("cancel", "hangup")
"""Clients that want their request cancelled."""


def check_run(case: Case, verdict: Verdict) -> None:
    """Every process lived until told to end, every client was served, the queue drained."""
    for event in case.by_type["run"]:
        verdict.seed = event["seed"]
    for event in case.by_type["died"]:
        log = event["log"].splitlines()[-3:]
        verdict.wrong("a process died by itself", f"{event['name']} {event['code']} {log}")
    for event in case.by_type["logged"]:
        verdict.wrong("a process logged an error", f"{event['name']} {event['line'][:1000]}")
    for event in case.by_type["unready"]:
        verdict.wrong("a process did not get ready", f"{event['name']} {event['why'][-300:]}")
    for event in case.by_type["exit"]:
        # A process that has just begun its life may not have heard of signals yet.
        if event["code"] not in (0, -SIGTERM):
            verdict.wrong("a process did not drain", f"{event['name']} {event['code']}")
    if not any(event["ok"] for event in case.by_type["drained"]):
        verdict.wrong("the queue did not drain")
    for event in case.by_type["fail"]:
        if event["status"] in SURE:
            verdict.wrong("a good request was refused", event)
    for event in case.by_type["info"]:
        if event.get("why") in ("missing", "gave up"):
            verdict.wrong("a client was left without an end", event)


def check_queue(case: Case, verdict: Verdict) -> None:
    """Jepsen's total-queue: what was acknowledged comes out, once, and nothing else does."""
    verdict.attempted, verdict.acknowledged = len(case.ops), len(case.acknowledged)
    for request_id, op in case.acknowledged.items():
        record = case.records.get(request_id, {"state": "no record", "reason": ""})
        if record["state"] not in TERMINAL or record["reason"] in ("lost", "undecodable"):
            end = f"{record['state']} {record['reason']}"
            verdict.lost.append(f"{request_id} of operation {op} ({case.kind_of(op)}): {end}")
    done: Counter[int] = Counter()
    recovered: set[int] = set()
    for request_id, record in case.records.items():
        number = case.op_of(request_id)
        if number is None:
            verdict.unexpected.append(f"{request_id} {record['state']}")
            continue
        done[number] += record["state"] == "done"
        recovered.add(number)
    verdict.recovered = len(recovered - set(case.acknowledged.values()))
    verdict.duplicated += [f"operation {op}: done {n} times" for op, n in done.items() if n > 1]


def check_terminal(case: Case, verdict: Verdict) -> None:
    """One terminal record for each request."""
    results = case.state["results"]
    for request_id, record in case.records.items():
        said = f"{request_id} {record['state']}"
        if record["state"] not in TERMINAL:
            verdict.wrong("a record is not terminal", said)
        elif request_id not in results:
            verdict.wrong("a record has no result", said)
        elif (state := head_of(results[request_id])["state"]) != record["state"]:
            verdict.wrong("record and result differ", f"{said}, {state}")
    for request_id in results.keys() - case.records.keys():
        verdict.wrong("a result has no record", request_id)


def head_of(result: str) -> Json:
    """The head of a stored result; one that is empty has no state."""
    head: Json = json.loads(result.partition("\n")[0] or '{"state":""}')
    return head


def check_identities(case: Case, verdict: Verdict) -> None:
    """The ledger counts the records, each once; indexes, streams and counters agree."""
    ledger, state = case.state["ledger"], case.state
    counts = Counter(record["state"] for record in case.records.values())
    for name in sorted(TERMINAL):
        if ledger.get(name, 0) != counts[name]:
            said = f"{name}: {ledger.get(name, 0)} in the ledger, {counts[name]} records"
            verdict.wrong("the ledger does not count the records", said)
    live = sum(state["places"].values()) + state["indexes"]["delayed"]
    running = state["indexes"]["leases"]
    ended = sum(ledger.get(name, 0) for name in TERMINAL)
    entries = sum(queue["entries"] for queue in state["queues"].values())
    sums = {
        "accepted = queued + running + ended": (ledger["accepted"], live + running + ended),
        "accepted = records": (ledger["accepted"], len(case.records)),
        "queued = places": (state["queued"], live),
        "running = leases": (state["running"], running),
        "deadlines = queued + running": (state["indexes"]["deadlines"], live + running),
        "entries = queued + running": (entries, live + running),
        "undecodable = 0": (ledger.get("undecodable", 0), 0),
    }
    for name, (left, right) in sums.items():
        if left != right:
            verdict.wrong("an identity is broken", f"{name}: {left}, {right}")


def check_told(case: Case, verdict: Verdict) -> None:
    """A terminal state that a client was told stays."""
    for event in [*case.by_type["seen"], *case.by_type["read"]]:
        record = case.records.get(event["id"])
        if event["state"].startswith("unread"):
            verdict.wrong("a request cannot be read", f"{event['id']}: {event['state']}")
        elif event["state"] in TERMINAL and record and record["state"] != event["state"]:
            if _answered_late(event, record):
                continue
            told = f"{event['id']} was {event['state']} and is {record['state']}"
            verdict.wrong("a terminal state changed", told)


def _answered_late(event: Json, record: Json) -> bool:
    """Whether a producer that heard nothing told its own client that the deadline was over, while
    the request had ended in time: it says nothing of the record."""
    if event.get("code") != "deadline_exceeded" or record["state"] != "done":
        return False
    return int(record["ended"]) <= int(record["deadline"])


def check_reasons(case: Case, verdict: Verdict) -> None:
    """No request ends otherwise than its client or its engine wants, but by what befell it."""
    for request_id, record in case.records.items():
        op = case.op_of(request_id)
        if op is not None and not _may_end_so(case, record, op):
            said = f"{request_id} of operation {op} ({case.kind_of(op)}) {record['reason']}"
            verdict.wrong(f"{record['state']} for no reason", said)


def _may_end_so(case: Case, record: Json, op: int) -> bool:
    kind, reason = case.kind_of(op), record["reason"]
    match record["state"]:
        case "done":
            return kind != "refuse"
        case "cancelled":  # also where an unanswered admit was taken back
            return kind in LEAVE or op not in case.acknowledged.values()
        case "failed":
            return kind == "refuse" or (record["stream"] == "1" and reason == "interrupted")
        case "expired":
            return kind == "expire"
        case "dead":
            return bool(reason == "crash_loop")
        case state:
            return bool(state != "shed")  # what is not terminal is told elsewhere


def check_left(case: Case, verdict: Verdict) -> None:
    """What only work keeps is gone with it."""
    if case.state["kept"]:
        verdict.wrong("keys without a TTL are left", case.state["kept"][:10])
    if case.state["queues"]:
        verdict.wrong("streams are left", case.state["queues"])
