"""One soak: a first round to know what idling takes, then the rest, and what is left of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from tests.soak.plant import Plant, standing
from tests.soak.stalls import Stall, explained, summary

from forebay_shared.records import TERMINAL

FIRST_SHARE = 0.02
FIRST_LEAST = 400
"""So many requests that each kind of key, and the bounded ones at their bounds, are there."""
GROWTH_BYTES = 1 << 20
"""More than this the server must not have grown; tables and allocator are not exact to a byte."""


@dataclass(slots=True)
class Soaked:
    """What was found; good where `problems` is empty."""

    requests: int
    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems

    def expect(self, name: str, found: Any, wanted: Any) -> None:
        """Note a figure, and that it is wrong if it is."""
        self.figures[name] = found
        if found != wanted:
            self.problems.append(f"{name}: {found}, not {wanted}")

    def as_json(self) -> dict[str, Any]:
        return {"good": self.good} | asdict(self)

    def text(self) -> str:
        """The report for people."""
        rows = [f"{name}: {value}" for name, value in self.figures.items()]
        rows += [f"BAD {problem}" for problem in self.problems]
        return "\n".join([*rows, "good" if self.good else "BAD"])


async def soak(folder: Path, requests: int, workers: int, *, quick: bool = False) -> Soaked:
    """Send `requests`, wait until idle and expired, compare. Raises where a process fails.

    `quick`: in one round and without waiting for what expires, so nothing is said of memory.
    """
    soaked = Soaked(requests)
    first = 0 if quick else min(requests // 2, max(FIRST_LEAST, int(requests * FIRST_SHARE)))
    async with standing(folder, workers) as plant:
        counts = [await plant.send(0, first)] if first else []
        before = {} if quick else await _idle(plant)
        counts.append(await _timed(soaked, plant, first, requests - first))
        if quick:
            await plant.until_drained()
        else:
            _compare(soaked, before, await _idle(plant))
        await _check_ends(soaked, plant, counts)
        await _check_left(soaked, plant)
    return soaked


async def _timed(soaked: Soaked, plant: Plant, first: int, count: int) -> dict[str, Any]:
    began_s = monotonic()
    counted = await plant.send(first, count)
    took_s = monotonic() - began_s
    soaked.figures["requests per second"] = round(count / took_s)
    soaked.figures["took (s)"] = round(took_s, 1)
    return counted


async def _idle(plant: Plant) -> dict[str, int]:
    """Memory when nothing is to be done and all that expires has expired."""
    await plant.until_drained()
    await plant.until_expired()
    return await plant.memory()


def _compare(soaked: Soaked, before: dict[str, int], after: dict[str, int]) -> None:
    soaked.figures["memory before (bytes)"] = before
    soaked.figures["memory after (bytes)"] = after
    grown = after["used_memory"] - before["used_memory"]
    soaked.figures["grown (bytes)"] = grown
    if grown > GROWTH_BYTES:
        soaked.problems.append(f"used_memory grew by {grown} bytes, more than {GROWTH_BYTES}")


async def _check_ends(soaked: Soaked, plant: Plant, counts: list[dict[str, Any]]) -> None:
    """Each request ended once: by the ledger, and as its source saw it."""
    ledger = (await plant.operator.status())["ledger"]
    seen: Counter[str] = Counter()
    for one in counts:
        seen.update(one["ended"])
    soaked.figures["ledger"] = ledger
    soaked.figures["seen"] = dict(seen)
    soaked.figures["repeated by key"] = sum(one["repeated"] for one in counts)
    ended = sum(ledger.get(state, 0) for state in TERMINAL)
    soaked.expect("ended, of those accepted", ended, ledger["accepted"])
    soaked.expect("ends seen", seen.total(), ledger["accepted"])
    if ledger["accepted"] < soaked.requests:
        soaked.problems.append(f"accepted: {ledger['accepted']} of {soaked.requests}")


async def _check_left(soaked: Soaked, plant: Plant) -> None:
    """Workers leave in order, and then all that is there may be there for ever, or expires."""
    await _check_slow(soaked, plant)
    soaked.expect("exit codes of workers", sorted(set(await plant.stop_workers())), [0])
    for name, count in (await plant.queues()).items():
        soaked.expect(name, count, 0)
    soaked.expect("keys without TTL that work keeps", await plant.kept(), [])
    soaked.figures["keys left"] = dict(Counter(name.split(":")[0] for name in await plant.names()))


async def _check_slow(soaked: Soaked, plant: Plant) -> None:
    """No command took 5 ms of the server's processor."""
    await plant.slow_log.close()
    found, stalls = plant.slow_log.found, await plant.witness.stalls()
    by_stalls = explained(found, stalls)
    slow = [one for one in found if one not in by_stalls]
    soaked.figures["slow commands are judged"] = plant.judged
    soaked.figures["processor stood still (times, s)"] = _stood_still(stalls)
    soaked.figures["slower than 5 ms, by stalls"] = summary(by_stalls)
    soaked.figures["slower than 5 ms"] = summary(slow)
    if slow and plant.judged:
        soaked.problems.append(f"slower than 5 ms: {summary(slow)}")


def _stood_still(stalls: list[Stall]) -> list[float]:
    return [len(stalls), round(sum(one.ended - one.begun for one in stalls), 3)]
