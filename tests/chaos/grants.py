"""After the kill of a worker: when what it held was granted again, by the server's clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from redis.exceptions import RedisError
from tests.chaos.history import History
from tests.chaos.stage import Stage

from forebay_shared.calls import Intake, Shown
from forebay_shared.records import TERMINAL

CHECK_S = 0.1
GIVE_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class Killed:
    """One kill: `held` are the requests as they were right after it."""

    worker: str
    at_ms: int
    held: list[Shown]


class GrantWatch:
    """Follows the requests of killed workers until they run again or end."""

    def __init__(self, stage: Stage, history: History) -> None:
        self._stage = stage
        self._history = history
        self._intake = Intake(stage.library)
        self._tasks: set[asyncio.Task[None]] = set()

    def worker_killed(self, name: str, pid: int) -> None:
        """Begin to follow what the worker of this process id held."""
        task = asyncio.create_task(self._follow(name, pid))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for all that are still followed."""
        await asyncio.gather(*self._tasks)

    async def _follow(self, name: str, pid: int) -> None:
        try:
            async with asyncio.timeout(GIVE_UP_S):
                killed = await self._held(name, pid)
                await asyncio.gather(*[self._granted(killed, one) for one in killed.held])
        except TimeoutError:
            self._history.write("held", name=name, given_up=True)
        except RedisError:
            # The server was away at that moment: what was held then is not known.
            self._history.write("held", name=name, redis_away=True)

    async def _held(self, name: str, pid: int) -> Killed:
        status = await self._stage.operator.status()
        workers = [
            one["id"] for one in status["workers"] if str(one["about"].get("pid")) == str(pid)
        ]
        held = []
        for request_id in await leased(self._stage):
            shown = await self._intake.show(request_id)
            worker = await owner(self._stage, request_id)
            if shown and shown.state == "running" and worker in workers:
                held.append(shown)
        killed = Killed(name, status["now_ms"], held)
        self._history.write("held", name=name, ids=[one.request_id for one in held])
        return killed

    async def _granted(self, killed: Killed, before: Shown) -> None:
        """Until the request runs again or has ended; `reasons`: for what it was seen to wait."""
        reasons: set[str] = set()
        while True:
            now = await self._look(before)
            if now is None or (now.takes == before.takes and now.state in TERMINAL):
                return
            if now.takes > before.takes:
                break
            if now.state == "queued":
                reasons.add(now.waits_for)
            await asyncio.sleep(CHECK_S)
        self._history.write(
            "granted",
            name=killed.worker,
            id=before.request_id,
            wait_ms=now.taken_ms - killed.at_ms,
            crashes=before.crashes + 1,
            held=len(killed.held),
            delivered=before.offset if before.stream else 0,
            reasons=sorted(reasons),
        )

    async def _look(self, before: Shown) -> Shown | None:
        """The request as it is; as it was where the server is away."""
        try:
            return await self._intake.show(before.request_id)
        except RedisError:
            return before


async def leased(stage: Stage) -> list[str]:
    """Ids of the running requests."""
    raw: list[bytes] = await stage.raw("ZRANGE", "leases", 0, -1)
    return [one.decode() for one in raw]


async def owner(stage: Stage, request_id: str) -> str:
    """Id of the worker that had or has the request's lease."""
    lease: bytes | None = await stage.raw("HGET", f"request:{request_id}", "lease")
    return (lease or b"").decode().split("/")[0]
