"""What is reported of a run beside its violations."""

from __future__ import annotations

from tests.chaos.case import Case
from tests.chaos.grant_checks import stood_still_s
from tests.chaos.verdict import Verdict, counted


def add_figures(case: Case, verdict: Verdict) -> None:
    """Ends, executions, faults and leftovers, as counts."""
    records = case.records.values()
    failed = [one for one in records if one["state"] == "failed"]
    verdict.figures |= {
        "states": counted(one["state"] for one in records),
        "failed": counted(one["reason"] or "engine" for one in failed),
        "executions": counted(one["takes"] for one in records),
        "streams": _streams(case),
        "crashes": counted(one["crashes"] for one in records),
        "attempts burned": _attempts_burned(case),
        "kills": counted(
            one["kind"].removeprefix("kill ")
            for one in case.by_type["fault"]
            if one["name"] == "kill"
        ),
        "faults": counted(one["kind"] for one in case.by_type["fault"]),
        "lives by library": counted(one["library"] for one in case.by_type["life"]),
        "libraries in Redis": case.state["libraries"],
        "troubles": counted(one.get("code") or one["why"] for one in case.by_type["trouble"]),
        "harness stood still (s)": round(stood_still_s(case), 1),
        "refused": counted(one["code"] for one in case.by_type["refused"]),
    }
    lives = {one["life"]: one for one in case.by_type["counted"]}.values()
    verdict.figures["stale writes refused"] = sum(one["stale"] for one in lives)
    verdict.figures["leases lost"] = sum(one["lost"] for one in lives)
    verdict.figures["left"] = {
        "keys": len(case.state["kept"]),
        "consumers": sum(len(one["consumers"]) for one in case.state["queues"].values()),
        "inboxes": case.state["inboxes"],
        "dead letters": case.state["dead"],
    }


def _streams(case: Case) -> dict[str, int]:
    """How streams ended, and those that a kill caught with something delivered."""
    streams = [one for one in case.records.values() if one["stream"] == "1"]
    caught = [
        case.records[one["id"]]
        for one in case.by_type["granted"]
        if one["delivered"] and one["id"] in case.records
    ]
    return {
        "done": sum(one["state"] == "done" for one in streams),
        "done over several takes": sum(
            one["state"] == "done" and int(one["takes"]) > 1 for one in streams
        ),
        "interrupted": sum(one["reason"] == "interrupted" for one in streams),
        "caught half told by a kill": len(caught),
        "of these done": sum(one["state"] == "done" for one in caught),
        "of these interrupted": sum(one["reason"] == "interrupted" for one in caught),
    }


def _attempts_burned(case: Case) -> int:
    """Attempts of requests that no engine refuses."""
    rows = [(case.op_of(name), int(one["attempts"])) for name, one in case.records.items()]
    return sum(n for op, n in rows if op is not None and case.kind_of(op) != "refuse")
