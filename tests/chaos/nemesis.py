"""Carries a plan out, and writes down what it did."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from tests.chaos.grants import GrantWatch
from tests.chaos.history import History
from tests.chaos.plan import Fault
from tests.chaos.processes import Process
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
            ("redis", "kill"): self._kill_redis,
            ("redis", "pause"): self._pause_redis,
            ("redis", "cut"): self._cut,
            ("redis", "lose"): self._lose,
            ("redis", "stall"): self._stall,
            ("redis", "flush functions"): self._flush_functions,
        }

    async def lane(self, faults: Sequence[Fault]) -> None:
        """All faults of one lane, in order."""
        for fault in faults:
            await asyncio.sleep(fault.gap_s)
            began_s = self._history.now_s
            await self._steps[fault.lane, fault.name](fault)
            self._history.write(
                "fault",
                lane=fault.lane,
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
                        "died", name=process.name, code=process.code, log=process.tail()
                    )
                    process.start()
            await asyncio.sleep(0.2)

    def _process(self, fault: Fault) -> Process:
        return self._stage.processes[fault.target]

    async def _again(self, process: Process) -> None:
        process.start()
        await process.ready(self._stage.http)

    async def _kill(self, fault: Fault) -> None:
        process = self._process(fault)
        pid = process.pid
        process.kill()
        if fault.target.startswith("w"):
            self._watch.worker_killed(process.name, pid)
        await asyncio.sleep(fault.hold_s)
        process.start()
        await asyncio.sleep(0)

    async def _pause(self, fault: Fault) -> None:
        process = self._process(fault)
        process.send(signal.SIGSTOP)
        await asyncio.sleep(fault.hold_s)
        process.send(signal.SIGCONT)

    async def _drain(self, fault: Fault) -> None:
        process = self._process(fault)
        code = await process.drain(EXIT_S)
        self._history.write("exit", name=process.name, code=code)
        await asyncio.sleep(fault.hold_s)
        process.start()

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
