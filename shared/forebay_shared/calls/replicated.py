"""Calls that count only once replicas have them: admit and finish, where the settings say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from forebay_shared.calls.library import Call, Library
from forebay_shared.connect import Unconfirmed
from forebay_shared.settings import PoolSettings

STEPS = frozenset(("admit", "finish"))


class Replicated(Library):
    """A library whose `admit` and `finish` wait for `wait_replicas` replicas.

    With 0 of them it is a Library. Else `call` and `together` raise Unconfirmed where not enough
    replicas had what was written within `wait_ms`: it was carried out, and may be repeated until
    they have. One of them at a time. `current`: the settings that hold now.
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

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        if not self.replicates or STEPS.isdisjoint(step for step, _ in calls):
            return await super()._send(calls)
        return await self._send_and_wait(calls)

    async def _send_and_wait(self, calls: Sequence[Call]) -> list[Any]:
        """All on one connection: Redis waits for what that very connection wrote.

        A repeat may find all done and write nothing, and Redis would then wait for nothing. So as
        long as an earlier call is in doubt, something is written before the wait: the self-test.
        """
        wanted, wait_ms = self._current().wait_replicas, self._current().wait_ms
        proof: list[Call] = [("selftest", [])] if self._in_doubt else []
        pipe = self._pipe([*calls, *proof])
        self._in_doubt = True
        pipe.wait(wanted, wait_ms)
        replies = await pipe.execute(raise_on_error=False)
        answers, rest = replies[: len(calls)], replies[len(calls) :]
        if all(isinstance(answer, ResponseError) for answer in answers):
            return answers
        for reply in rest:
            if isinstance(reply, ResponseError):
                return [reply] * len(calls)
        self._in_doubt = rest[-1] < wanted
        if self._in_doubt:
            raise Unconfirmed(f"{rest[-1]} of {wanted} replicas had it within {wait_ms} ms")
        return answers
