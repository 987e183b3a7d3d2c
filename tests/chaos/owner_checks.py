"""Only who holds the lease writes: an answer is known by the clock of the engine that gave it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.case import Case, Json
from tests.chaos.verdict import Verdict

ROUNDING_S = 2.0
"""`created` is cut to a second, and so are other things on the way."""


def check_owners(case: Case, verdict: Verdict) -> None:
    """What is stored was said by the engine of the worker whose lease the request has.

    Each life of a process has a clock of its own, off by a different time, and an engine writes its
    time into `created`. A late write of a worker that had lost its lease betrays itself so.
    """
    skews = skews_of_workers(case)
    checked = 0
    for request_id, record in case.records.items():
        known = skews.get(record["lease"].partition("/")[0])
        if record["state"] != "done" or not known:
            continue
        checked += 1
        stamps = set(_stamps(case, request_id, record))
        if record["stream"] == "1":
            # Whether a stream keeps its first stamp over several engines is not judged here.
            if len(stamps) > 1:
                verdict.wrong("a stream of two engines", f"{request_id}: {stamps}")
        elif not any(_fits(stamp, skew_s, record) for stamp in stamps for skew_s in known):
            said = f"{request_id}, taken {record['takes']} times, lease {record['lease']}"
            verdict.wrong("written by another than the lease's owner", said)
    verdict.figures["owners checked"] = checked


def skews_of_workers(case: Case) -> dict[str, list[float]]:
    """Worker id → by how much the clock of its engine is off; of an engine apart, in each life."""
    by_name: dict[str, list[float]] = defaultdict(list)
    by_pid: dict[int, tuple[str, float]] = {}
    for life in case.by_type["life"]:
        by_name[life["name"]].append(life["skew_s"])
        by_pid[life["pid"]] = (life["name"], life["skew_s"])
    skews: dict[str, list[float]] = {}
    for worker in case.by_type["worker"]:
        name, skew_s = by_pid.get(worker["pid"], ("", 0.0))
        if name:
            skews[worker["id"]] = by_name["e1"] if name == "w4" else [skew_s]
    return skews


def _stamps(case: Case, request_id: str, record: Json) -> Iterator[int]:
    """The stored `created` of the answer, or of each chunk; what is not there is told elsewhere."""
    if record["stream"] == "1":
        output = case.state["outputs"].get(request_id, {"chunks": []})
        bodies = [event for _, event in output["chunks"]]
    else:
        bodies = [case.state["results"].get(request_id, "").partition("\n")[2]]
    for body in filter(None, bodies):
        yield int(json.loads(body)["created"])


def _fits(created: int, skew_s: float, record: Json) -> bool:
    """Whether an engine with such a clock said it between the last grant and the end."""
    true_s = created - skew_s
    earliest_s, latest_s = int(record["taken"]) / 1000, int(record["ended"]) / 1000
    return earliest_s - ROUNDING_S <= true_s <= latest_s + ROUNDING_S
