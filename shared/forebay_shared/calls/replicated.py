"""Calls that count only once replicas have them: admit and finish, where the settings say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from forebay_shared.calls.library import Argument, Library
from forebay_shared.connect import Unconfirmed
from forebay_shared.library import function_name
from forebay_shared.settings import PoolSettings

STEPS = frozenset(("admit", "finish"))


class _Plain(Pipeline):
    """A pipeline that leaves error replies as they are: bodies have no place in them."""

    def annotate_exception(self, *_: Any) -> None: ...


class Replicated(Library):
    """A library whose `admit` and `finish` wait for `wait_replicas` replicas.

    With 0 of them it is a Library. Else `call` raises Unconfirmed where not enough replicas had the
    call's writes within `wait_ms`: it was carried out, and may be repeated until they have. One
    such call at a time. `current`: the settings that hold now.
    """

    def __init__(
        self,
        redis: Redis,
        pool: str,
        settings: PoolSettings | None,
        current: Callable[[], PoolSettings],
    ) -> None:
        super().__init__(redis, pool, settings)
        self._current = current
        self._in_doubt = False

    @property
    def replicates(self) -> bool:
        return self._current().wait_replicas > 0

    async def _fcall(self, step: str, *arguments: Argument) -> Any:
        if step not in STEPS or not self.replicates:
            return await super()._fcall(step, *arguments)
        return await self._fcall_and_wait(step, arguments)

    async def _fcall_and_wait(self, step: str, arguments: tuple[Argument, ...]) -> Any:
        """Both on one connection: Redis waits for what that very connection wrote.

        A repeat may find all done and write nothing, and Redis would then wait for nothing. So as
        long as an earlier call is in doubt, something is written before the wait: the self-test.
        """
        wanted, wait_ms = self._current().wait_replicas, self._current().wait_ms
        pipe = _Plain(self.redis.connection_pool, self.redis.response_callbacks, False, None)
        pipe.fcall(function_name(step), 2, self.keys.layout, self.keys.never, *arguments)
        if self._in_doubt:
            pipe.fcall(function_name("selftest"), 2, self.keys.layout, self.keys.never)
        self._in_doubt = True
        pipe.wait(wanted, wait_ms)
        replies = await pipe.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        self._in_doubt = replies[-1] < wanted
        if self._in_doubt:
            raise Unconfirmed(f"{replies[-1]} of {wanted} replicas had it within {wait_ms} ms")
        return replies[0]
