"""The parts of a worker, made and joined; nothing runs yet."""

from __future__ import annotations

import os
import socket

from forebay_shared.calls import Duties, Leases, Library, Operator
from forebay_shared.calls.output import Output
from forebay_shared.calls.replicated import Replicated
from forebay_shared.connect import connect, connect_blocking
from forebay_shared.ids import new_process_id
from forebay_shared.keys import Keys
from forebay_shared.library import LIBRARY_NAME
from forebay_shared.metrics import Metrics
from forebay_shared.names import client_name
from forebay_shared.settings import PoolSettings
from forebay_worker.bells import BLOCK_S, Bells
from forebay_worker.capacity import Capacity
from forebay_worker.control import Control
from forebay_worker.drain import Drain
from forebay_worker.emit import Emitter
from forebay_worker.engine import Engine
from forebay_worker.eviction import Eviction
from forebay_worker.execute import Executor
from forebay_worker.gate import Gate
from forebay_worker.health import Health
from forebay_worker.join import Join
from forebay_worker.judge import Judge
from forebay_worker.keeper import Keeper
from forebay_worker.link import Link
from forebay_worker.options import WorkOptions
from forebay_worker.outbox import Outbox
from forebay_worker.pulse import Pulse
from forebay_worker.registry import Listing, Registry
from forebay_worker.resume import Resume
from forebay_worker.rules import Rules
from forebay_worker.runs import Runs
from forebay_worker.sweeper import Sweeper
from forebay_worker.take import Taker
from forebay_worker.wake import Wake
from forebay_worker.watch import Watch
from forebay_worker.wedge import Wedge


class Core:
    """What all other parts know: the worker's name, its Redis, what it holds, what is asked."""

    def __init__(
        self, options: WorkOptions, engine: Engine, settings: PoolSettings | None = None
    ) -> None:
        self.id = new_process_id()
        self.options = options
        self.engine = engine
        # One connection each for the take loop, emitter, keeper, sweeper and registry, and some
        # for renewals of more than 100 leases at the same time.
        url, key = options.redis, Keys(options.pool).layout
        self.redis = connect(url, key=key, max_connections=16, name=client_name("worker", self.id))
        self.bells_redis = connect_blocking(url, BLOCK_S, key=key, name=f"bells-{self.id}")
        self.control_redis = connect_blocking(url, BLOCK_S, key=key, name=f"control-{self.id}")
        self.library = Library(self.redis, options.pool, settings)
        self.leases = Leases(
            Replicated(self.redis, options.pool, settings, lambda: self.rules.settings)
        )
        self.duties = Duties(self.library)
        self.wake = Wake()
        self.operator = Operator(self.library)
        self.rules = Rules(self.operator, self.wake, options.classes)
        self.metrics = Metrics()
        self.link = Link(self.metrics)
        self.runs = Runs()
        self.drain = Drain()


class Parts(Core):
    """All parts of one worker."""

    def __init__(
        self, options: WorkOptions, engine: Engine, settings: PoolSettings | None = None
    ) -> None:
        super().__init__(options, engine, settings)
        self.capacity = Capacity(options.slots)
        self.pulse = Pulse(engine, self.drain, self.wake, self.metrics, options.recheck_s)
        self.gate = Gate(self.id, self.rules, self.runs, self.capacity, self.pulse, self.drain)
        self.outbox = Outbox(self.runs, self.wake, self.metrics)
        self.health = Health(self.link, self.pulse, self.drain, self.metrics)
        self.wedge = Wedge(self.pulse, self.runs, self.rules, self.drain, options.wedged_s)
        self.watch = Watch(
            engine, self.capacity, self.pulse, self.wedge, self.runs, self.wake, self.metrics
        )
        self._make_redis_side()
        self.executor = Executor(
            engine,
            self.rules,
            self.runs,
            self.outbox,
            self.emitter,
            Resume(engine, Output(self.library), self.link, self.metrics),
            Judge(self.pulse, self.capacity, self.runs),
        )

    def _make_redis_side(self) -> None:
        link, metrics, keys = self.link, self.metrics, self.library.keys
        self.emitter = Emitter(self.id, self.leases, link, metrics)
        self.keeper = Keeper(self.id, self.leases, self.rules, self.runs, link, metrics)
        self.sweeper = Sweeper(self.duties, self.rules, link, metrics)
        self.control = Control(self.control_redis, keys, self.id, self.runs, self.drain, link)
        self.eviction = Eviction(self.redis, link, metrics)
        self.bells = Bells(self.bells_redis, keys, link, self.wake)
        self.taker = Taker(
            self.leases, self.gate, self.outbox, self.bells, self.wake, link, metrics
        )
        listing = Listing(self.gate, self.drain, self.engine, self._about())
        self.registry = Registry(
            self.duties, self.redis, self.options.pool, listing, self.drain, self.rules, link
        )
        self.join = Join(self.id, self.options.pool, self.operator, self.registry, self.pulse, link)

    def _about(self) -> dict[str, str]:
        kind = "sim" if self.options.engine == "sim" else "openai"
        about = {"engine": kind, "host": socket.gethostname(), "pid": str(os.getpid())}
        return about | {"library": LIBRARY_NAME}
