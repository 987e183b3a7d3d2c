"""Whether the engine serves, as far as this worker has seen, and who is to blame when it failed."""

from __future__ import annotations

import asyncio
import logging

from forebay_shared.calls.work import Blame
from forebay_shared.logs import event
from forebay_shared.metrics import Metrics
from forebay_worker.drain import Drain
from forebay_worker.engine import Engine, EngineError, EngineFailed, EngineRejected
from forebay_worker.pace import Backoff
from forebay_worker.wake import Wake

FIRST_PAUSE_S = 0.1
MOST_PAUSE_S = 5.0
LATE_S = 1.0
"""A dying engine may say for about a second that it is well."""
MODELS_WAIT_S = 2.0
KEY_REFUSALS = frozenset({401, 403, 407})
"""No key, not this key, no key for the proxy before it. Clients have no key for the engine."""
DOWN, KEY_REFUSED = "engine", "engine refuses our key"


class Pulse:
    """`serving`: work may be taken. The engine counts as down until it has said that it is well
    and has listed its models to us (or has said that it has no list); `why_down` says which.
    `listed` is set when that came first, `joined` when those models were let into the pool.

    After a refusal there is a pause, which doubles until a call works again.
    """

    def __init__(
        self, engine: Engine, drain: Drain, wake: Wake, metrics: Metrics, recheck_s: float
    ) -> None:
        self._engine = engine
        self._drain = drain
        self._wake = wake
        self._metrics = metrics
        self._recheck_s = recheck_s
        self._backoff = Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)
        self._pause: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[bool] | None = None
        self._down_s = float("-inf")
        self._failing_s: float | None = None
        self._told = False
        self.up = False
        self.listed = asyncio.Event()
        self.joined = asyncio.Event()
        self.why_down = DOWN
        self.models: list[str] = []

    @property
    def serving(self) -> bool:
        return self.up and self._pause is None and self.joined.is_set()

    def join(self) -> None:
        """The models fit the pool: from now on work may be taken."""
        self.joined.set()
        self._wake.up()

    def worked(self) -> None:
        """The engine answered a call: the next pause is a short one."""
        self._backoff.reset()
        self._told = False

    def refused(self) -> bool:
        """A call was not accepted: pause. False while a pause runs already."""
        if self._pause is not None:
            return False
        loop = asyncio.get_running_loop()
        self._pause = loop.call_later(self._backoff.next_s(), self._resume)
        return True

    def _resume(self) -> None:
        self._pause = None
        self._wake.up()

    async def check(self) -> bool:
        """Ask the engine for its health; those who ask at the same time share one question."""
        if self._check is None:
            self._check = asyncio.create_task(self._ask(), name="health")
        return await asyncio.shield(self._check)

    @property
    def failing_s(self) -> float:
        """For how long the engine has failed each question for its health; 0 after it was well."""
        if self._failing_s is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._failing_s

    async def _ask(self) -> bool:
        asked_s = asyncio.get_running_loop().time()
        try:
            well = await self._engine.health()
            up = well and (self.up or await self._lists_models())
        finally:
            self._check = None
        if well:
            self._failing_s = None
        else:
            self._failing_s = asked_s if self._failing_s is None else self._failing_s
            self._down_s = asyncio.get_running_loop().time()
            self.why_down = DOWN
        if up != self.up:
            self._turn(up)
        return up

    async def _lists_models(self) -> bool:
        try:
            async with asyncio.timeout(MODELS_WAIT_S):
                self.models = await self._engine.models()
        except (EngineRejected, EngineFailed) as error:
            if error.status in KEY_REFUSALS:
                self._key_refused(error.status)
                return False
            # It answers, and has no list: whether it takes our key is seen at the first call.
        except (EngineError, TimeoutError):
            self.why_down = DOWN
            return False
        return True

    async def refused_key(self, status: int) -> bool:
        """A call was refused for our key: down until the models are listed; whether that is now."""
        self.refused()
        self._key_refused(status)
        return await self.check()

    def _key_refused(self, status: int) -> None:
        self.why_down = KEY_REFUSED
        if not self._told:
            self._told = True
            event(KEY_REFUSED, logging.ERROR, status=status)
        if self.up:
            self._turn(False)

    def _turn(self, up: bool) -> None:
        self.up = up
        self._metrics.set("forebay_engine_up", float(up))
        if up:
            self.listed.set()
            event("engine serves")
        else:
            event("engine down", logging.WARNING, why=self.why_down)
        self._wake.up()

    async def blame(self) -> Blame:
        """Why a call that the engine had accepted failed, judged by its health a while later."""
        failed_s = asyncio.get_running_loop().time()
        await asyncio.sleep(self._recheck_s)
        await self.check()
        if self._drain.started.is_set():
            return Blame.BLAMELESS  # engine and worker are being stopped together
        if self._down_s >= failed_s - LATE_S:
            return Blame.CRASHED
        return Blame.ATTEMPT
