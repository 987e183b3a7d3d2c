"""Rolling restarts under load, and what they cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import aiohttp
from redis.asyncio import Redis
from tests.rolling.balancer import Balancer
from tests.rolling.fleet import Fleet
from tests.rolling.load import Load
from tests.servers import start_server

from forebay_shared.connect import connect
from forebay_shared.records import TERMINAL

CLIENTS = 6
TOLD = 5
"""Errors that are told in full."""


@dataclass(slots=True)
class Report:
    """`faults` names what must not be and was; all the rest are figures."""

    restarts: int
    processes_replaced: int = 0
    took_s: float = 0.0
    answers: dict[str, int] = field(default_factory=dict)
    client_errors: int = 0
    wrong_texts: int = 0
    sdk_repeats: int = 0
    accepted: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    attempts_burned: int = 0
    crashes: int = 0
    given_back: int = 0
    slowest_drain_s: float = 0.0
    usual_drain_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {"good": self.good, **asdict(self)}

    def text(self) -> str:
        rows = [f"{name.replace('_', ' ')}: {value}" for name, value in asdict(self).items()]
        return "\n".join([*rows[:-1], *(f"FAULT {one}" for one in self.faults)])


async def run(folder: Path, restarts: int) -> Report:
    """Replace all processes `restarts` times under load."""
    report = Report(restarts)
    began_s = monotonic()
    with start_server(folder) as server:
        fleet = Fleet(server.url, folder)
        balancer = Balancer(fleet.replicas)
        async with aiohttp.ClientSession() as http, connect(server.url) as redis:
            try:
                await fleet.start(http)
                await balancer.open()
                await _roll(report, fleet, balancer, http)
                await _count_records(report, redis)
            finally:
                fleet.stop()
                await balancer.close()
    report.took_s = round(monotonic() - began_s, 1)
    _judge(report, fleet)
    return report


async def _roll(
    report: Report, fleet: Fleet, balancer: Balancer, http: aiohttp.ClientSession
) -> None:
    await balancer.ready.wait()
    load = Load(balancer.url, CLIENTS)
    for _ in range(report.restarts):
        await fleet.roll(http)
        report.processes_replaced += len(fleet.posts)
    await load.stop()
    tally = load.tally
    report.answers = dict(tally.answers)
    report.client_errors, report.wrong_texts = len(tally.errors), len(tally.wrong)
    report.sdk_repeats = balancer.repeats
    report.faults += [f"a client saw {one}" for one in (*tally.errors, *tally.wrong)[:TOLD]]


async def _count_records(report: Report, redis: Redis) -> None:
    """From the requests' own records, which outlive them by more than a run lasts."""
    totals: Counter[str] = Counter()
    async for key in redis.scan_iter(match="fb:*:request:*", count=1_000):
        values = await redis.hmget(key, ["takes", "attempts", "crashes"])
        takes, attempts, crashes = (int(value or 0) for value in values)
        totals += Counter(records=1, again=max(0, takes - 1), attempts=attempts, crashes=crashes)
    raw = await redis.hgetall("fb:{default}:ledger")
    ledger = {name.decode(): int(count) for name, count in raw.items()}
    report.accepted = ledger["accepted"]
    report.ended = {state: ledger[state] for state in TERMINAL if ledger.get(state)}
    report.given_back = totals["again"]
    report.attempts_burned, report.crashes = totals["attempts"], totals["crashes"]
    if totals["records"] != report.accepted:
        report.faults.append(f"{totals['records']} records of {report.accepted} accepted requests")


def _judge(report: Report, fleet: Fleet) -> None:
    drains_s = [drain_s for post in fleet.posts for drain_s in post.drains_s]
    report.slowest_drain_s = round(max(drains_s), 2)
    report.usual_drain_s = round(median(drains_s), 2)
    answered = sum(report.answers.values())
    wanted = {
        "attempts burned": (report.attempts_burned, 0),
        "crashes": (report.crashes, 0),
        "client errors": (report.client_errors, 0),
        "wrong texts": (report.wrong_texts, 0),
        "ended": (report.ended, {"done": answered}),
        "accepted": (report.accepted, answered),
    }
    report.faults += [
        f"{name}: {got}, not {due}" for name, (got, due) in wanted.items() if got != due
    ]
    for post in fleet.posts:
        report.faults += [f"{post.name} exited with {code}" for code in post.codes if code != 0]
        report.faults += [f"{post.name} logged {line}" for line in post.complaints()[:TOLD]]
