"""Running a producer: listen, serve, drain.

Start: options checked, sockets bound, health served, then the pools as soon as Redis answers.
Stop: not ready → serve on → stop listening → let open answers finish within the grace → end the
rest with an error event → close. From the end of the grace, or from a second signal, the process
is gone within 2 s, whatever Redis, a client or a name lookup does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn
import uvloop
from starlette.types import ASGIApp

from forebay_producer.app import admin_app, api_app
from forebay_producer.keysfile import BadKeysFile
from forebay_producer.listen import (
    CannotServe,
    bind,
    bind_uds,
    metrics_need_key,
    require_safe,
    shown_address,
    split_address,
)
from forebay_producer.options import ServeOptions, Timings
from forebay_producer.replica import Replica
from forebay_producer.supervise import end_tasks, exit_after
from forebay_shared import logs
from forebay_shared.connect import safe_url

_KEEP_ALIVE_S = 75
"""Longer than load balancers keep idle connections (60 s), so that they close first."""
AFTER_GRACE_S = 2.0
"""For last words, for telling Redis who was left, and for closing."""
_CLOSE_S = 0.2
"""Of that, for each of the steps that should take no time."""
_LEAVE_S = 0.3
"""Of that at least, for telling Redis whom clients have left."""
_TICK_S = 1.0
"""The date in answers is renewed this often."""


class CannotStart(Exception):
    """Redis answers and refuses this producer; the message says why."""


class _Server(uvicorn.Server):
    """uvicorn that leaves signals alone and says when it listens."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app, http="httptools", ws="none", lifespan="off", log_config=None,
                access_log=False, server_header=False, proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        )  # fmt: skip
        self.up = asyncio.Event()
        self._stop = asyncio.Event()

    def stop(self, *, force: bool = False) -> None:
        """Stop listening, and end when all answers are out; with `force` without them."""
        self.should_exit, self.force_exit = True, force
        self._stop.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections:
            await super().shutdown(sockets)
            return
        for server in self.servers:  # nobody is there to wait for
            server.close()
        for listener in sockets or []:
            listener.close()


class Producer:
    """One replica in this event loop: `start`, and later `drain`, once each.

    Raises CannotServe for options that cannot be served.
    """

    def __init__(self, options: ServeOptions) -> None:
        require_safe(options)
        self._options = options
        self._servers: list[tuple[_Server, asyncio.Task[None]]] = []
        try:
            self.replica = Replica(options)
        except (BadKeysFile, ValueError) as error:
            raise CannotServe(str(error)) from None

    async def start(self) -> str:
        """Listen and begin to serve; the address. Redis need not be there yet."""
        options = self._options
        if metrics_need_key(options):
            logs.event("metrics_need_key", 30, want="--admin, or a key for the scraper")
        if options.admin:
            await self._listen(admin_app(self.replica), bind(*split_address(options.admin)))
        listener = bind_uds(options.uds) if options.uds else bind(options.host, options.port)
        address = await self._listen(api_app(self.replica), listener)
        self.replica.start()
        logs.event("serving", address=address, redis=safe_url(options.redis_url))
        return address

    async def _listen(self, app: ASGIApp, listener: socket.socket) -> str:
        server = _Server(app)
        task = asyncio.create_task(server.serve([listener]))
        self._servers.append((server, task))
        up = asyncio.create_task(server.up.wait())
        await asyncio.wait([task, up], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            up.cancel()
            await task  # raises why it does not listen
        return shown_address(listener)

    async def drain(self, hurry: asyncio.Event) -> None:
        """Stop as the module says; `hurry` skips the waits."""
        timings, (server, serving) = self._options.timings, self._servers[-1]
        self.replica.draining = True
        logs.event("draining", serve_on_s=timings.serve_on_s, grace_s=timings.grace_s)
        await _either(hurry, serving, timings.serve_on_s)
        server.stop()
        await _either(hurry, serving, timings.grace_s)
        ends_s = asyncio.get_running_loop().time() + AFTER_GRACE_S
        if not serving.done():
            logs.event("end_open", waiters=self.waiters())
            self.replica.end_open()
            await asyncio.wait([serving], timeout=timings.last_words_s)
        await self._close(ends_s)

    def waiters(self) -> int:
        """Clients that wait for an answer here."""
        return sum(len(pool.inbox) for pool in self.replica.pools.values())

    async def _close(self, ends_s: float) -> None:
        for server, _ in self._servers:
            server.stop(force=True)
        await _end([task for _, task in self._servers], _CLOSE_S)
        # Time that clients did not need goes to telling Redis whom they have left.
        rest_s = ends_s - asyncio.get_running_loop().time() - 4 * _CLOSE_S
        cancellations = asyncio.create_task(self.replica.finish_cancellations())
        await _end([cancellations], max(_LEAVE_S, rest_s))
        await _end([asyncio.create_task(self.replica.close(_CLOSE_S))], 2 * _CLOSE_S)
        if self._options.uds:
            self._options.uds.unlink(missing_ok=True)
        logs.event("stopped")


async def _either(hurry: asyncio.Event, task: asyncio.Task[None], within_s: float) -> None:
    """Return when `hurry` is set, the task is done or the time is over."""
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait([hurried, task], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()


async def _end(tasks: list[asyncio.Task[None]], within_s: float) -> None:
    """Let tasks end by themselves for a while, then cancel them."""
    await asyncio.wait(tasks, timeout=within_s)
    await end_tasks(tasks, _CLOSE_S)


async def serve(options: ServeOptions, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second one hurries. `ready` gets the address.

    Raises CannotServe, and CannotStart where Redis refuses to serve before it ever did.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    guard = asyncio.create_task(_be_gone_on_time(stop, hurry, options.timings))
    try:
        await _serve(options, stop, hurry, ready)
    finally:
        guard.cancel()


async def _serve(
    options: ServeOptions,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    ready: Callable[[str], None] | None,
) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    producer = Producer(options)
    address = await producer.start()
    if ready is not None:
        ready(address)
    unusable = producer.replica.unusable
    waits = [asyncio.create_task(event.wait()) for event in (stop, unusable)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if unusable.is_set():
        hurry.set()
    await producer.drain(hurry)
    if unusable.is_set():
        where = safe_url(options.redis_url)
        raise CannotStart(f"{where} cannot be used: {producer.replica.why_unusable}")


async def _be_gone_on_time(stop: asyncio.Event, hurry: asyncio.Event, timings: Timings) -> None:
    """Ends the process hard should closing hang, as in a name lookup that nobody can cancel."""
    await stop.wait()
    exit_after(timings.serve_on_s + timings.grace_s + AFTER_GRACE_S)
    await hurry.wait()
    exit_after(AFTER_GRACE_S)


def run(options: ServeOptions) -> int:
    """Serve until told to stop; the exit code.

    0, 2 for options that cannot be served, 1 where Redis refuses this producer from the start.
    """
    try:
        uvloop.run(serve(options))
    except (CannotServe, CannotStart) as error:
        sys.stderr.write(f"forebay serve: {error}\n")
        return 2 if isinstance(error, CannotServe) else 1
    return 0
