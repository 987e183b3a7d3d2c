"""Loading the function library and calling one of its functions."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from forebay_shared.connect import at, each_primary, redis_away
from forebay_shared.errors import CommandsRefused, LayoutMismatch
from forebay_shared.keys import Keys
from forebay_shared.library import LIBRARY_NAME, function_name, source
from forebay_shared.settings import PoolSettings

Argument = bytes | str | int | float
ITEMS_PER_CALL = 100
"""Most items that one call carries; callers with more make several calls."""
HEAVY_ITEMS_PER_CALL = 3
"""Most requests that one call admits, grants, ends or gives back, so that none takes 5 ms."""
_REPAIRS = 2
"""A new server lacks library and layout both."""


class Library:
    """Calls functions of the library for one pool, loading it where it is missing.

    `redis` is `at` the server that has the pool, whichever slot of a cluster it was made for. A
    call that finds the library or the pool's layout missing (new server, FUNCTION FLUSH,
    FLUSHALL, a slot that moved) repairs that and is repeated. Other errors go to the caller;
    whether Redis is away is judged by `forebay_shared.connect.redis_away`.
    """

    def __init__(
        self, redis: Redis, pool: str = "default", settings: PoolSettings | None = None
    ) -> None:
        self.pool = pool
        self.keys = Keys(pool)
        self.redis = at(redis, self.keys.layout)
        self._defaults = settings or PoolSettings()

    async def start(self) -> None:
        """Load the library, found the pool and prove that every inner command may be called.

        Raises CommandsRefused or LayoutMismatch where this user or Redis cannot serve.
        """
        await self.call("found", self._defaults.stored())
        try:
            await self.call("selftest")
        except ResponseError as error:
            raise CommandsRefused(f"the library cannot work as this user: {error}") from error
        await self._load_everywhere()

    async def call(self, step: str, *arguments: Argument) -> Any:
        """Call the function of `step`; its raw reply.

        Raises LayoutMismatch and what Redis raises.
        """
        for _ in range(_REPAIRS):
            try:
                return await self._fcall(step, *arguments)
            except ResponseError as error:
                await self._repair(error)
        return await self._fcall(step, *arguments)

    async def _fcall(self, step: str, *arguments: Argument) -> Any:
        return await self.redis.fcall(
            function_name(step), 2, self.keys.layout, self.keys.never, *arguments
        )

    async def _repair(self, error: ResponseError) -> None:
        text = str(error)
        if "Function not found" in text:
            await self._load()
        elif text.startswith("NOLAYOUT"):
            await self._fcall("found", self._defaults.stored())
        elif text.startswith("LAYOUT"):
            raise LayoutMismatch(text) from error
        else:
            raise error

    async def _load(self, redis: Redis | None = None) -> None:
        try:
            await (redis or self.redis).function_load(source())
        except ResponseError as error:
            if "already exists" not in str(error):
                raise

    async def _load_everywhere(self) -> None:
        """Load it on the other primaries of a cluster too, for the day when the slot moves there.

        Left for that day where one is away, or this user may not load: an operator does it then.
        """
        try:
            async for primary in each_primary(self.redis):
                if primary is not self.redis:
                    await self._load(primary)
        except RedisError as error:
            if not (redis_away(error) or isinstance(error, NoPermissionError)):
                raise

    @property
    def replicates(self) -> bool:
        """Whether an end counts only once replicas have it."""
        return False

    @property
    def name(self) -> str:
        """The library's name on the server; ends in a hash of its text."""
        return LIBRARY_NAME
