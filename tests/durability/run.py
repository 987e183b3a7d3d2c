"""One case: load, kills of Redis at random moments, and what is left of what it acknowledged."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic

from tests.durability.cases import Case
from tests.durability.disk import Disk
from tests.durability.load import POOL, SETTINGS
from tests.durability.notes import Note, read
from tests.durability.report import Outcome
from tests.flow.processes import COMPONENTS, ROOT
from tests.servers import start_server

from forebay_shared.calls import Intake, Library
from forebay_shared.calls.doctor import Counts, Doctor
from forebay_shared.calls.library import ITEMS_PER_CALL
from forebay_shared.calls.requests import UNKNOWN
from forebay_shared.connect import connect

SHM = Path("/dev/shm")
ROLES = ("admit", "admit", "serve")
KILL_S = (0.4, 1.6)
"""A kill comes so long after Redis answers again."""
START_S = 30.0


def measure(case: Case, seed: int, kills: int, folder: Path) -> Outcome:
    """Run one case; `folder` is on the disk that is measured."""
    outcome, began_s = Outcome(case.name, case.promises, kills), monotonic()
    killed: list[float] = []
    draw = random.Random(f"{seed} {case.name}")
    with ExitStack() as stack:
        place = Path(stack.enter_context(_place(SHM if case.in_memory else folder)))
        disk = Disk(place, case.sync_ms) if case.is_preloaded else None
        binary = disk.binary if disk else None
        server = stack.enter_context(start_server(place, binary=binary, extra=case.options))
        paths = [place / f"{number}.notes" for number in range(len(ROLES))]
        with ExitStack() as load:
            for role, path in zip(ROLES, paths, strict=True):
                words = ("-m", "tests.durability.load", server.url, role, str(path))
                load.enter_context(_child(*words))
            _wait_all(paths)
            for _ in range(kills):
                _wait_growth(paths)
                # Not a wait for anything: the moment of the kill, drawn from the seed.
                signal.sigtimedwait([], draw.uniform(*KILL_S))
                server.kill()
                killed.append(monotonic())
                if disk and case.power:
                    disk.lose_power(place)
                server.restart()
        asyncio.run(_judge(outcome, server.url, list(read(paths)), killed))
    outcome.took_s = monotonic() - began_s
    return outcome


def _place(parent: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="forebay-durability-", dir=parent)


@contextmanager
def _child(*words: str) -> Iterator[None]:
    """A Python process that ends with the block; raises where it ended by itself."""
    path = os.pathsep.join([str(ROOT), *(str(ROOT / one) for one in COMPONENTS)])
    process = subprocess.Popen([sys.executable, *words], env=os.environ | {"PYTHONPATH": path})
    try:
        yield
        if process.poll() is not None:
            raise AssertionError(f"a process ended by itself: {process.returncode}")
    finally:
        process.kill()
        process.wait()


def _wait_all(paths: Sequence[Path]) -> None:
    """Return when each process has been acknowledged something."""
    _wait(lambda: all(_size([path]) for path in paths), "a process gets no answer")


def _wait_growth(paths: Sequence[Path]) -> None:
    """Return when something more was acknowledged."""
    before = _size(paths)
    _wait(lambda: _size(paths) > before, "nothing is acknowledged")


def _wait(holds: Callable[[], bool], otherwise: str) -> None:
    until_s = monotonic() + START_S
    while not holds():
        assert monotonic() < until_s, otherwise
        signal.sigtimedwait([], 0.01)


def _size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.exists())


async def _judge(
    outcome: Outcome, url: str, notes: Sequence[Note], killed: Sequence[float]
) -> None:
    admitted = {one.request_id: one.at_s for one in notes if one.kind == "admitted"}
    ends = [one for one in notes if one.kind == "ended"]
    async with connect(url) as redis:
        library = Library(redis, POOL, SETTINGS)
        states = await _states(Intake(library), list(admitted))
        counts = await Doctor(library).counts()
    lost = {one: at_s for one, at_s in admitted.items() if not states[one]}
    again = lost_ends(ends, states)
    outcome.admitted, outcome.lost = len(admitted), len(lost)
    outcome.ended, outcome.ended_again = len(ends), len(again)
    date_losses(outcome, [*lost.values(), *again], killed)
    outcome.problems = _problems(counts, states)


def lost_ends(ends: Sequence[Note], states: dict[str, str]) -> list[float]:
    """When those ends were acknowledged of which the state knows nothing, or that came twice."""
    count = Counter(one.request_id for one in ends)
    latest = {one.request_id: one for one in ends}
    undone = [one.at_s for one in latest.values() if states.get(one.request_id, "") != "done"]
    undone = [one for one in undone if states]
    twice = [
        one.at_s for one in ends if count[one.request_id] > 1 and one is not latest[one.request_id]
    ]
    return undone + twice


def date_losses(outcome: Outcome, lost: Sequence[float], killed: Sequence[float]) -> None:
    """Which kill lost each, and how long it had been acknowledged by then."""
    losing = set()
    for at_s in lost:
        number = min(bisect_left(killed, at_s), len(killed) - 1)
        losing.add(number)
        outcome.oldest_lost_s = max(outcome.oldest_lost_s, killed[number] - at_s)
    outcome.losing_kills = len(losing)


async def _states(intake: Intake, ids: Sequence[str]) -> dict[str, str]:
    """The state of each request; empty where there is no record. Done means: with its result."""
    found: dict[str, str] = {}
    for start in range(0, len(ids), ITEMS_PER_CALL):
        page = [(one, UNKNOWN) for one in ids[start : start + ITEMS_PER_CALL]]
        for seen in await intake.reply("", page):
            ended = seen.state != "done" or seen.result
            found[seen.request_id] = seen.state if ended else "done without result"
    return found


def _problems(counts: Counts, states: dict[str, str]) -> list[str]:
    live = counts.queued + counts.running
    told = []
    if counts.accepted != live + counts.ended:
        told.append(f"accepted {counts.accepted} is not queued + running {live} + {counts.ended}")
    if counts.entries != live:
        told.append(f"{counts.entries} entries for {live} live requests")
    if odd := set(states.values()) - {"", "queued", "running", "done"}:
        told.append(f"states that nobody caused: {', '.join(sorted(odd))}")
    return told
