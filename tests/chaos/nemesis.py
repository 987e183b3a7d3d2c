"""Carries a plan out, and writes down what it did."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from random import Random

from tests.chaos.grants import GrantWatch
from tests.chaos.history import History
from tests.chaos.plan import Fault
from tests.chaos.processes import Place, Process, tail
from tests.chaos.stage import GRACE_S, Stage

LOSS = 0.02
EXIT_S = GRACE_S + 20.0
"""Far above what a drain may take: a busy machine is no fault of the process."""

Step = Callable[[Fault], Awaitable[None]]


class Nemesis:
    """Strikes in lanes that run side by side; each fault is undone before the lane's next one."""

    def __init__(self, stage: Stage, history: History, watch: GrantWatch) -> None:
        self._stage = stage
        self._history = history
        self._watch = watch
        self._steps: dict[tuple[str, str], Step] = {
            ("process", "kill"): self._kill,
            ("process", "pause"): self._pause,
            ("process", "drain"): self._drain,
            ("process", "roll"): self._roll,
            ("process", "clock"): self._jump,
            ("redis", "kill"): self._kill_redis,
            ("redis", "pause"): self._pause_redis,
            ("redis", "cut"): self._cut,
            ("redis", "lose"): self._lose,
            ("redis", "stall"): self._stall,
            ("redis", "flush functions"): self._flush_functions,
        }

    async def lane(self, decks: Iterator[list[Fault]], length_s: float) -> None:
        """Faults of one lane in order, for `length_s`, but at least one whole deck."""
        until_s = self._history.now_s + length_s
        for number, deck in enumerate(decks):
            for fault in deck:
                await asyncio.sleep(fault.gap_s)
                if number > 0 and self._history.now_s > until_s:
                    return
                await self._strike(fault)

    async def _strike(self, fault: Fault) -> None:
        began_s = self._history.now_s
        await self._steps[fault.lane, fault.name](fault)
        self._history.write(
            "fault",
            kind=fault.kind,
            name=fault.name,
            target=fault.target,
            from_s=round(began_s, 4),
            until_s=round(self._history.now_s, 4),
        )

    async def supervise(self) -> None:
        """Start again what ended though nobody had told it to, and write it down."""
        while True:
            for process in self._stage.processes.values():
                if process.code is not None and not process.told_to_end:
                    self._history.write(
                        "died", name=process.name, code=process.code, log=tail(process)
                    )
                    process.start()
            await asyncio.sleep(0.2)

    def _place(self, fault: Fault) -> Place:
        return self._stage.processes[fault.target]

    def _process(self, name: str) -> Process:
        """One that can drain and whose clock can jump: not an engine of another maker."""
        place = self._stage.processes[name]
        assert isinstance(place, Process), name
        return place

    async def _kill(self, fault: Fault) -> None:
        place = self._place(fault)
        pid = place.pid
        place.kill()
        if place in self._stage.role("worker"):
            self._watch.worker_killed(place.name, pid)
        await asyncio.sleep(fault.hold_s)
        place.start()

    async def _pause(self, fault: Fault) -> None:
        place = self._place(fault)
        place.send(signal.SIGSTOP)
        await asyncio.sleep(fault.hold_s)
        place.send(signal.SIGCONT)

    async def _drain(self, fault: Fault) -> None:
        await self._restart(self._process(fault.target), fault.hold_s)

    async def _restart(self, process: Process, away_s: float) -> None:
        code = await process.drain(EXIT_S)
        self._history.write("exit", name=process.name, code=code)
        await asyncio.sleep(away_s)
        process.start()

    async def _roll(self, fault: Fault) -> None:
        """A rolling restart: each process of a role, when the one before serves again."""
        for place in self._stage.role(fault.target.removesuffix("s")):
            await self._restart(self._process(place.name), 0.0)
            await self._stage.until_ready(place)

    async def _jump(self, fault: Fault) -> None:
        self._process(fault.target).jump()

    async def _kill_redis(self, fault: Fault) -> None:
        self._stage.server.kill()
        await asyncio.sleep(fault.hold_s)
        await asyncio.to_thread(self._stage.server.restart)  # the links go on meanwhile
        await self._stage.redis.connection_pool.disconnect()  # ours are dead, too

    async def _pause_redis(self, fault: Fault) -> None:
        self._stage.server.pause()
        await asyncio.sleep(fault.hold_s)
        self._stage.server.resume()

    async def _flush_functions(self, _: Fault) -> None:
        await self._stage.redis.function_flush()

    def _links(self, fault: Fault) -> list[str]:
        return [name for name in self._stage.links if fault.target in (name, "all links")]

    async def _cut(self, fault: Fault) -> None:
        for name in self._links(fault):
            self._stage.links[name].cut()

    async def _lose(self, fault: Fault) -> None:
        links = [self._stage.links[name] for name in self._links(fault)]
        for number, link in enumerate(links):
            link.dice, link.loss = Random(fault.dice + number), LOSS
        await asyncio.sleep(fault.hold_s)
        for link in links:
            link.loss = 0.0

    async def _stall(self, fault: Fault) -> None:
        links = [self._stage.links[name] for name in self._links(fault)]
        for link in links:
            link.stall()
        await asyncio.sleep(fault.hold_s)
        for link in links:
            link.flow()
