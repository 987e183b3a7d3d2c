"""The whole system as children of this process.

Start                            Stop (^C, SIGTERM, or the terminal closes)
  1 Redis, outside of this         1 producer: finishes open answers, takes nothing new
  2 producer and workers           2 workers: finish or give back what they hold
  3 when all are ready: tell,      3 Redis, outside of this: writes everything down
    and ask the question
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import dataclass
from typing import Any

from forebay_shared.cli import ready
from forebay_shared.cli.api import Place, Producer
from forebay_shared.cli.child import Child
from forebay_shared.cli.childlog import ChildLog
from forebay_shared.cli.local_redis import NamedRedis, OwnRedis
from forebay_shared.cli.terminal import Problem, say
from forebay_shared.cli.voice import Voice


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: `workers` beside each of `engines`. `serve` and `work` are further options."""

    host: str
    port: int
    engines: tuple[str, ...]
    workers: int
    serve: tuple[str, ...] = ()
    work: tuple[str, ...] = ()
    ask: str | None = None
    api_key: str | None = None

    def place(self) -> Place:
        """Where this machine reaches the producer."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return Place(f"http://{f'[{host}]' if ':' in host else host}:{self.port}", self.api_key)

    def serve_arguments(self) -> list[str]:
        """Without Redis' URL: that is in the environment, since a command line is public."""
        where = ["--host", self.host, "--port", str(self.port)]
        # No load balancer stands before it that would have to notice its end.
        return ["forebay_producer", *where, "--serve-on", "0", *self.serve]

    def work_arguments(self) -> list[list[str]]:
        """One a worker."""
        engines = [engine for engine in self.engines for _ in range(self.workers)]
        return [["forebay_worker", "--engine", engine, *self.work] for engine in engines]


TOLD_S = 0.5
"""Children that a supervisor told, too, have said so within this time."""


class Signals:
    """What the user has asked for: first to stop, then to hurry.

    `told_s`: how long to wait for children that may have been told as well. Supervisors send
    SIGTERM to a whole group; of a ^C the children, in sessions of their own, hear nothing.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.told_s = 0.0

    def listen(self) -> None:
        """Take the signals over from Python."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._came, number)

    def _came(self, number: signal.Signals) -> None:
        if number == signal.SIGTERM and not self.stop.is_set():
            self.told_s = TOLD_S
        (self.hurry if self.stop.is_set() else self.stop).set()


class System:
    """`run` starts everything, serves and stops everything; once."""

    def __init__(self, plan: Plan, redis: NamedRedis | OwnRedis, voice: Voice) -> None:
        self._plan = plan
        self._redis = redis
        self._voice = voice
        self._log = ChildLog()
        environment = os.environ | {"FOREBAY_REDIS": redis.url}
        self._producer = Child("producer", plan.serve_arguments(), environment, self._log)
        self._workers = [
            Child(f"worker {number}", arguments, environment, self._log)
            for number, arguments in enumerate(plan.work_arguments(), start=1)
        ]
        self._signals = Signals()
        self._ask_failed = False

    async def run(self) -> bool:
        """Serve until a signal; whether the question, if there was one, was answered.

        Raises Problem where a child cannot start.
        """
        self._signals.listen()
        children = [asyncio.create_task(child.keep()) for child in (self._producer, *self._workers)]
        keeping, opening = (
            asyncio.create_task(self._redis.keep()),
            asyncio.create_task(self._open()),
        )
        try:
            await self._until_stop([*children, keeping, opening])
        finally:
            opening.cancel()
            self._log.release()
            await self._stop()
            keeping.cancel()  # last: what the children finish is written to it
            await asyncio.wait([*children, keeping, opening])
        return not self._ask_failed

    async def _until_stop(self, tasks: list[asyncio.Task[None]]) -> None:
        """Returns at the first signal. Raises what a task raises; that one ends is well."""
        stop = asyncio.create_task(self._signals.stop.wait())
        running: set[asyncio.Task[Any]] = {stop, *tasks}
        try:
            while not stop.done():
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            stop.cancel()

    async def _open(self) -> None:
        """Tell when everything is ready, ask the question, say what to do next."""
        place = self._plan.place()
        async with Producer(place) as producer:
            await ready.until_ready(producer)
            model = await ready.until_served(self._redis.url, self._registered, self._plan.engines)
            await ready.until_listed(producer, model)
            self._voice.ready(place.url, self._redis.url, model, self.pids())
            if self._plan.ask is not None:
                await self._ask(producer, self._plan.ask, model)
        self._voice.advise(place, model)

    async def _ask(self, producer: Producer, text: str, model: str) -> None:
        """Ask; a failure is told, and stops nothing that could be looked at."""
        self._log.hold()
        try:
            await ready.ask(producer, text, model, self._voice)
            if self._plan.engines == ("sim",):
                self._voice.simulated()
        except Problem as problem:
            self._ask_failed = True
            say(f"the question failed: {problem.message}")
        finally:
            self._log.release()

    def pids(self) -> dict[str, int | None]:
        """Process ids by name; None where nothing runs at this moment, or somebody else runs it."""
        children = {child.name: child.pid for child in (self._producer, *self._workers)}
        return {"redis": self._redis.pid} | children

    def _registered(self) -> set[tuple[str, str]]:
        return {(socket.gethostname(), str(worker.pid)) for worker in self._workers}

    async def _stop(self) -> None:
        self._voice.stopping()
        told = self._signals.hurry, self._signals.told_s
        await self._producer.stop(*told)
        await asyncio.gather(*(worker.stop(*told) for worker in self._workers))
        self._voice.stopped()
