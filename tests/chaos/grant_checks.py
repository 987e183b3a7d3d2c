"""From the kill of a worker to the next grant of what it held: reported, and judged."""

from __future__ import annotations

from collections import defaultdict

from tests.chaos.case import Case
from tests.chaos.history import Event
from tests.chaos.verdict import Verdict, counted, spread

OUTAGES = ("kill", "pause")
ENOUGH = 100
"""Of so many waits the 99th percentile is judged; of fewer it would be their maximum."""
STILL_SHARE = 0.02
"""Where the harness stood still for so much of a run, the machine was too busy to judge waits."""
LATE_S = 20.0
"""What no slow machine explains: beyond that a single wait is judged."""
ALIVE = "Redis alive"
AGAIN = "crashed before"
AWAY = "Redis away, that and a lease each time taken off"


def check_grants(case: Case, verdict: Verdict) -> None:
    """Waits by what befell them, the 99th percentile within lease + sweep where Redis lived.

    Apart: while Redis was away nobody could grant, and the pool keeps quiet for a lease whenever it
    is back; a request that has crashed before is a suspect, which a worker takes only beside few.
    """
    (run,) = case.by_type["run"]
    lease_s = run["lease_ms"] / 1000
    bound_s = lease_s + (run["reclaim_ms"] + run["sweep_ms"]) / 1000
    busy = stood_still_s(case) > STILL_SHARE * run["length_s"]
    verdict.figures["waits are judged"] = "no: the machine was too busy" if busy else "yes"
    waits: dict[str, list[float]] = defaultdict(list)
    for event in case.by_type["granted"]:
        absences = _absences_s(case, event, lease_s)
        name = AGAIN if event["crashes"] > 1 else AWAY if absences else ALIVE
        allowed_s = sum(absences) + lease_s * len(absences)
        waits[name].append(round(max(0.0, event["wait_ms"] / 1000 - allowed_s), 3))
    for name in (ALIVE, AGAIN, AWAY):
        said = spread(waits[name]) | {"bound": bound_s}
        verdict.figures[f"next grant after a kill, {name} (s)"] = said
        few = said["count"] < ENOUGH or name == AGAIN or busy
        if said["count"] and said["max" if few else "p99"] > bound_s + (LATE_S if few else 0):
            verdict.wrong("a killed worker's request waited too long", f"{name}: {said}")
    reasons = [reason for event in case.by_type["granted"] for reason in event["reasons"]]
    verdict.figures["seen waiting after a kill, for a"] = counted(reasons)


def stood_still_s(case: Case) -> float:
    """How long the harness itself got no processor."""
    return float(sum(one["until_s"] - one["from_s"] for one in case.by_type["stalled"]))


def _absences_s(case: Case, granted: Event, lease_s: float) -> list[float]:
    """How long Redis was killed or stopped meanwhile, or could not be reached, each time.

    Nothing where that was shortly before: but then, too, the pool keeps quiet for a lease.
    """
    until_s = granted["at_s"]
    from_s = until_s - granted["wait_ms"] / 1000
    faults = [one for one in case.by_type["fault"] if one["target"] == "redis"]
    gone = [one for one in faults if one["name"] in OUTAGES] + case.by_type["stalled"]
    return [
        max(0.0, min(until_s, one["until_s"]) - max(from_s, one["from_s"]))
        for one in gone
        if one["from_s"] < until_s and one["until_s"] > from_s - lease_s
    ]
