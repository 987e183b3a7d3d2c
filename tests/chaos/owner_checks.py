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
    time into `created`. A late write of a worker that had lost its lease betrays itself so. Answers
    alone: what a stream has of another engine, its offsets and its text would tell.
    """
    skews = skews_of_workers(case)
    checked = 0
    for request_id, record in case.records.items():
        known = skews.get(record["lease"].partition("/")[0])
        # A stream keeps its first stamp over several engines: that is judged elsewhere.
        if record["state"] != "done" or record["stream"] == "1" or not known:
            continue
        checked += 1
        stamps = set(_stamps(case, request_id))
        if not any(_fits(stamp, skew_s, record) for stamp in stamps for skew_s in known):
            said = f"{request_id}, taken {record['takes']} times, lease {record['lease']}"
            verdict.wrong("written by another than the lease's owner", said)
    verdict.figures["owners checked"] = checked


def skews_of_workers(case: Case) -> dict[str, list[float]]:
    """Worker id → by how much the clock of its engine is off; of an engine apart, in each life."""
    by_name: dict[str, list[float]] = defaultdict(list)
    by_pid: dict[int, list[float]] = defaultdict(list)
    names: dict[int, str] = {}
    for event in (*case.by_type["life"], *case.by_type["clock"]):
        names.setdefault(event["pid"], event.get("name", ""))
        by_pid[event["pid"]].append(event["skew_s"])
        by_name[names[event["pid"]]].append(event["skew_s"])
    (run,) = case.by_type["run"]
    skews: dict[str, list[float]] = {}
    for worker in case.by_type["worker"]:
        beside = run["beside"].get(names.get(worker["pid"], ""))
        skews[worker["id"]] = by_name[beside] if beside else by_pid[worker["pid"]]
    return skews


def _stamps(case: Case, request_id: str) -> Iterator[int]:
    """The stored `created` of the answer; an answer that is not there is told elsewhere."""
    if body := case.state["results"].get(request_id, "").partition("\n")[2]:
        yield int(json.loads(body)["created"])


def _fits(created: int, skew_s: float, record: Json) -> bool:
    """Whether an engine with such a clock said it between the last grant and the end."""
    true_s = created - skew_s
    earliest_s, latest_s = int(record["taken"]) / 1000, int(record["ended"]) / 1000
    return earliest_s - ROUNDING_S <= true_s <= latest_s + ROUNDING_S
