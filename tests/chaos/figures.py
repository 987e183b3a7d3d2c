"""What is reported of a run beside its violations."""

from __future__ import annotations

from tests.chaos.case import Case
from tests.chaos.history import Event
from tests.chaos.verdict import Verdict, counted, spread

OUTAGES = ("kill", "pause")
LATE_S = 20.0
"""Beyond lease, sweep and an outage's lease: for a free slot, and for slow machines."""


def add_figures(case: Case, verdict: Verdict) -> None:
    """Ends, executions, faults and leftovers, as counts."""
    records = case.records.values()
    failed = [one for one in records if one["state"] == "failed"]
    verdict.figures |= {
        "states": counted(one["state"] for one in records),
        "failed": counted(one["reason"] or "engine" for one in failed),
        "executions": counted(one["takes"] for one in records),
        "crashes": counted(one["crashes"] for one in records),
        "attempts burned": _attempts_burned(case),
        "faults": counted(f"{one['name']} {one['target']}" for one in case.by_type["fault"]),
        "troubles": counted(one.get("code") or one["why"] for one in case.by_type["trouble"]),
        "harness stood still (s)": round(
            sum(one["until_s"] - one["from_s"] for one in case.by_type["stalled"]), 1
        ),
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


def _attempts_burned(case: Case) -> int:
    """Attempts of requests that no engine refuses."""
    rows = [(case.op_of(name), int(one["attempts"])) for name, one in case.records.items()]
    return sum(n for op, n in rows if op is not None and case.kind_of(op) != "refuse")


def add_grants(case: Case, verdict: Verdict) -> None:
    """From the kill of a worker to the next grant, apart where Redis was away meanwhile."""
    (run,) = case.by_type["run"]
    lease_s = run["lease_ms"] / 1000
    bound_s = lease_s + (run["reclaim_ms"] + run["sweep_ms"]) / 1000
    waits: dict[bool, list[float]] = {True: [], False: []}
    for event in case.by_type["granted"]:
        away_s = _away_s(case, event, lease_s)
        waits[away_s > 0].append(round(event["wait_ms"] / 1000 - away_s, 3))
    for away, name in ((False, "Redis alive"), (True, "Redis away, its absence taken off")):
        limit_s = bound_s + away * lease_s
        said = spread(waits[away]) | {"bound": limit_s}
        verdict.figures[f"next grant after a kill, {name} (s)"] = said
        if said.get("max", 0) > limit_s + LATE_S:
            verdict.wrong("a killed worker's request waited too long", said)


def _away_s(case: Case, granted: Event, lease_s: float) -> float:
    """How long Redis was killed or stopped meanwhile, or could not be reached.

    At least a millisecond where that was shortly before: the pool then keeps quiet for a lease.
    """
    until_s = granted["at_s"]
    from_s = until_s - granted["wait_ms"] / 1000
    faults = [one for one in case.by_type["fault"] if one["target"] == "redis"]
    gone = [one for one in faults if one["name"] in OUTAGES] + case.by_type["stalled"]
    away = [(one["from_s"], one["until_s"]) for one in gone]
    parts = [
        min(until_s, end_s) - max(from_s, begin_s)
        for begin_s, end_s in away
        if begin_s < until_s and end_s > from_s - lease_s
    ]
    return float(sum(max(0.001, part) for part in parts))
