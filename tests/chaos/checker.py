"""Judges a run by its history and the final state alone; nothing here talks to the system.

    python -m tests.chaos.checker FOLDER

repeats the judgement of a kept run.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.chaos.history import Event, read_history, short_hash
from tests.chaos.reading import text_of
from tests.chaos.texts import expected_text
from tests.chaos.verdict import Verdict, counted, spread

from forebay_shared.records import TERMINAL

Json = dict[str, Any]
LATE_S = 20.0
"""Beyond lease, sweep and an outage's lease: for a free slot, and for slow machines."""
HISTORY, STATE = "history.jsonl", "state.json"


class Checker:
    """One run: its events by type and operation, and its final state."""

    def __init__(self, events: Iterable[Event], state: Json) -> None:
        self.verdict = Verdict()
        self.state = state
        self.by_type: dict[str, list[Event]] = defaultdict(list)
        self.by_op: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            self.by_type[event["type"]].append(event)
            if "op" in event:
                self.by_op[event["op"]].append(event)
        self.ops = {event["op"]: event for event in self.by_type["invoke"]}
        self.op_of_timeout = {str(event["timeout_ms"]): op for op, event in self.ops.items()}
        # A record without a class is no request: it stands for one that must not be admitted.
        self.records: dict[str, Json] = {k: v for k, v in state["records"].items() if v["class"]}
        self._texts: dict[int, str] = {}

    def check(self) -> Verdict:
        self._run()
        self._queue()
        self._terminal()
        self._identities()
        self._told()
        for request_id, record in self.records.items():
            self._stored_text(request_id, record)
        for op in self.ops:
            self._client_text(op)
            self._stream(op)
        self._left()
        self._figures()
        return self.verdict

    def expected(self, op: int) -> str:
        """What the engine says to this operation's body."""
        if op not in self._texts:
            self._texts[op] = expected_text(self.ops[op]["path"], self.ops[op]["body"])
        return self._texts[op]

    def op_of(self, record: Json) -> int | None:
        return self.op_of_timeout.get(record["timeout"])

    def _run(self) -> None:
        for event in self.by_type["run"]:
            self.verdict.seed = event["seed"]
        for event in self.by_type["died"]:
            log = event["log"].splitlines()[-3:]
            self.verdict.wrong("a process died by itself", f"{event['name']} {event['code']} {log}")
        for event in self.by_type["exit"]:
            if event["code"] is None:
                self.verdict.wrong("a process did not end on SIGTERM", event["name"])
        if not any(event["ok"] for event in self.by_type["drained"]):
            self.verdict.wrong("the queue did not drain")
        for event in self.by_type["fail"]:
            if event["status"] in (400, 409, 410, 422):
                self.verdict.wrong("a good request was refused", event)

    # Jepsen's total-queue: what goes in comes out, once.

    def _queue(self) -> None:
        verdict = self.verdict
        verdict.attempted = len(self.ops)
        acknowledged = {event["id"]: event["op"] for event in self.by_type["accepted"]}
        verdict.acknowledged = len(acknowledged)
        for request_id, op in acknowledged.items():
            state = self.records.get(request_id, {}).get("state", "no record")
            reason = self.records.get(request_id, {}).get("reason", "")
            if state not in TERMINAL or reason in ("lost", "undecodable"):
                kind = self.ops[op]["kind"]
                verdict.lost.append(f"{request_id} of operation {op} ({kind}): {state} {reason}")
        done: Counter[int] = Counter()
        known = set(acknowledged.values())
        recovered: set[int] = set()
        for request_id, record in self.records.items():
            op = self.op_of(record)
            if op is None:
                verdict.unexpected.append(f"{request_id} {record['state']}")
                continue
            if op not in known:
                recovered.add(op)
            done[op] += record["state"] == "done"
        verdict.recovered = len(recovered)
        verdict.duplicated += [f"operation {op}: done {n} times" for op, n in done.items() if n > 1]

    # One terminal record for each request, counted once.

    def _terminal(self) -> None:
        for request_id, record in self.records.items():
            result = self.state["results"].get(request_id)
            if record["state"] not in TERMINAL:
                self.verdict.wrong("a record is not terminal", f"{request_id} {record['state']}")
            elif result is None:
                self.verdict.wrong("a record has no result", f"{request_id} {record['state']}")
            elif (state := head_of(result)["state"]) != record["state"]:
                self.verdict.wrong("record and result differ", f"{request_id} {record} {state}")
        for request_id in self.state["results"].keys() - self.records.keys():
            self.verdict.wrong("a result has no record", request_id)

    def _identities(self) -> None:
        ledger, state = self.state["ledger"], self.state
        counts = Counter(record["state"] for record in self.records.values())
        for name in sorted(TERMINAL):
            if ledger.get(name, 0) != counts[name]:
                said = f"{name}: {ledger.get(name, 0)} in the ledger, {counts[name]} records"
                self.verdict.wrong("the ledger does not count the records", said)
        live = sum(state["places"].values()) + state["indexes"]["delayed"]
        running = state["indexes"]["leases"]
        ended = sum(ledger.get(name, 0) for name in TERMINAL)
        sums = {
            "accepted = queued + running + ended": ledger["accepted"] == live + running + ended,
            "accepted = records": ledger["accepted"] == len(self.records),
            "queued = places": state["queued"] == live,
            "running = leases": state["running"] == running,
            "deadlines = live": state["indexes"]["deadlines"] == live + running,
            "entries = live": sum(q["entries"] for q in state["queues"].values()) == live + running,
        }
        for name, holds in sums.items():
            if not holds:
                self.verdict.wrong("an identity is broken", f"{name} {ledger} {state['indexes']}")
        if undecodable := ledger.get("undecodable", 0):
            self.verdict.wrong("entries that nobody can read", undecodable)

    # What a client was told stays true.

    def _told(self) -> None:
        for event in self.by_type["seen"]:
            record = self.records.get(event["id"])
            if event["state"] in TERMINAL and record and record["state"] != event["state"]:
                told = f"{event['id']} was {event['state']} and is {record['state']}"
                self.verdict.wrong("a terminal state changed", told)
        for event in self.by_type["info"]:
            if event.get("why") in ("missing", "gave up"):
                self.verdict.wrong("a client was left without an end", event)

    # Texts: of the client, of the record, of the replica that assembles it, of the engine.

    def _stored_text(self, request_id: str, record: Json) -> None:
        op = self.op_of(record)
        if op is None or record["state"] != "done":
            return
        if record["stream"] == "1":
            text = self._output_text(request_id, record)
        else:
            text = text_of(json.loads(self.state["results"][request_id].partition("\n")[2]))
        if text != self.expected(op):
            said = f"{request_id}: {text[:60]!r}… is not {self.expected(op)[:60]!r}…"
            self.verdict.wrong("a stored text differs", said)

    def _output_text(self, request_id: str, record: Json) -> str:
        output = self.state["outputs"].get(request_id, {"chunks": [], "ends": []})
        offsets = [offset for offset, _ in output["chunks"]]
        count = len(offsets)
        whole = offsets == list(range(1, count + 1)) and int(record["offset"]) == count
        if not whole or output["ends"] != [[count + 1, record["state"], count]]:
            ends = f"{record['offset']} chunks, {offsets}, ends {output['ends']}"
            self.verdict.wrong("an output is not whole", f"{request_id}: {ends}")
        return "".join(text_of(json.loads(event)) for _, event in output["chunks"])

    def _client_text(self, op: int) -> None:
        for event in self.by_op[op]:
            if event["type"] in ("ok", "read") and event.get("text") is not None:
                if event["state"] == "done" and event["text"] != self.expected(op):
                    self.verdict.wrong("a client's text differs", f"operation {op}: {event}")
                elif not self.expected(op).startswith(event["text"]):
                    self.verdict.wrong("a client's text is spliced", f"operation {op}: {event}")

    def _stream(self, op: int) -> None:
        """Events come once and in order; a stream that could not go on says so once."""
        events = self.by_op[op]
        ids = [event["id"] for event in events if event["type"] == "accepted"]
        if self.ops[op]["kind"] not in ("stream", "follow") or not ids:
            return
        chunks = [event for event in events if event["type"] == "chunk"]
        if [event["n"] for event in chunks] != list(range(1, len(chunks) + 1)):
            self.verdict.wrong("a client's events are not in order", f"operation {op}")
        stored = dict(self.state["outputs"].get(ids[-1], {"chunks": []})["chunks"])
        for event in chunks:
            if event["hash"] != short_hash(stored.get(event["n"], "")):
                self.verdict.wrong("a client's event is not the stored one", f"{op}: {event}")
        self._error_events(op, ids[-1], events)

    def _error_events(self, op: int, request_id: str, events: list[Event]) -> None:
        errors = sum(event["type"] == "error" for event in events)
        state = self.records.get(request_id, {}).get("state")
        ended = any(event["type"] == "ok" for event in events)
        if self.ops[op]["kind"] == "follow" and ended and errors != (state != "done"):
            # A replica that stops may say so, too.
            breaks = sum(event["type"] == "break" for event in events)
            if errors < (state != "done") or errors > (state != "done") + breaks:
                self.verdict.wrong("not one error event", f"operation {op}: {errors}, {state}")
        if self.ops[op]["kind"] == "stream" and ended and state != "done" and errors != 1:
            self.verdict.wrong("not one error event", f"operation {op}: {errors}, {state}")

    def _left(self) -> None:
        if self.state["kept"]:
            self.verdict.wrong("keys without a TTL are left", self.state["kept"][:10])
        if self.state["queues"]:
            self.verdict.wrong("streams are left", self.state["queues"])

    # Figures.

    def _figures(self) -> None:
        figures, records = self.verdict.figures, self.records.values()
        figures["states"] = counted(Counter(one["state"] for one in records))
        failed = Counter(one["reason"] or "engine" for one in records if one["state"] == "failed")
        figures["failed"] = counted(failed)
        figures["executions"] = counted(Counter(int(one["takes"]) for one in records))
        figures["attempts burned"] = sum(int(one["attempts"]) for one in records)
        figures["crashes"] = counted(Counter(int(one["crashes"]) for one in records))
        faults = Counter(f"{one['name']} {one['target']}" for one in self.by_type["fault"])
        figures["faults"] = counted(faults)
        figures["troubles"] = counted(
            Counter(str(one.get("code") or one.get("why")) for one in self.by_type["trouble"])
        )
        self._grants()
        counters = {one["life"]: one for one in self.by_type["counted"]}.values()
        figures["stale writes refused"] = sum(one["stale"] for one in counters)
        figures["leases lost"] = sum(one["lost"] for one in counters)
        consumers = sum(len(queue["consumers"]) for queue in self.state["queues"].values())
        figures["left"] = {
            "keys": len(self.state["kept"]),
            "consumers": consumers,
            "inboxes": self.state["inboxes"],
            "dead letters": self.state["dead"],
        }

    def _grants(self) -> None:
        """From the kill of a worker to the next grant, apart where Redis was away meanwhile."""
        (run,) = self.by_type["run"]
        waits: dict[bool, list[float]] = {True: [], False: []}
        for event in self.by_type["granted"]:
            waits[self._away(event)].append(event["wait_ms"] / 1000)
        bound_s = (run["lease_ms"] + run["reclaim_ms"] + run["sweep_ms"]) / 1000
        for away, name in ((False, "redis alive"), (True, "redis away")):
            limit_s = bound_s + away * run["lease_ms"] / 1000
            said = spread(waits[away]) | {"bound": limit_s}
            self.verdict.figures[f"next grant after a kill, {name} (s)"] = said
            if said.get("max", 0) > limit_s + LATE_S:
                self.verdict.wrong("a killed worker's request waited too long", said)

    def _away(self, granted: Event) -> bool:
        until_s = granted["at_s"]
        from_s = until_s - granted["wait_ms"] / 1000 - run_slack_s(granted)
        return any(
            one["lane"] == "redis" and one["from_s"] <= until_s and one["until_s"] >= from_s
            for one in self.by_type["fault"]
        )


def run_slack_s(granted: Event) -> float:
    """An outage that ended just before the kill still counts: quiet lasts for one lease."""
    return 3.0


def head_of(result: str) -> Json:
    """The head of a stored result."""
    head: Json = json.loads(result.partition("\n")[0])
    return head


def check_folder(folder: Path) -> Verdict:
    """The verdict on a run whose history and state are in `folder`."""
    state = json.loads((folder / STATE).read_text())
    return Checker(read_history(folder / HISTORY), state).check()


if __name__ == "__main__":
    verdict = check_folder(Path(sys.argv[1]))
    print(verdict.text())
    sys.exit(not verdict.good)
