"""Loading the function library and calling one of its functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from forebay_shared.connect import at, each_primary, redis_away
from forebay_shared.errors import CommandsRefused, LayoutMismatch
from forebay_shared.keys import Keys
from forebay_shared.library import LIBRARY_NAME, function_name, source
from forebay_shared.settings import PoolSettings

T = TypeVar("T")
Argument = bytes | str | int | float
Call = tuple[str, Sequence[Argument]]
"""A step and its arguments."""
ITEMS_PER_CALL = 100
"""Most items that one call carries; callers with more make several calls."""
HEAVY_ITEMS_PER_CALL = 3
"""Most requests that one call admits, grants, ends or gives back, so that none takes 5 ms."""
HEAVY_ITEMS_TOGETHER = 4 * HEAVY_ITEMS_PER_CALL
"""Most of them sent at once, in several calls: Redis hardly serves anybody else in between."""
_REPAIRS = 2
"""A new server lacks library and layout both."""


def batched(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """The items in parts of at most so many, in order."""
    return [items[start : start + most] for start in range(0, len(items), most)]


def unrefused(replies: Sequence[T | ResponseError]) -> list[T]:
    """The replies of `Library.together`. Raises the first ResponseError among them."""
    good: list[T] = []
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
        good.append(reply)
    return good


class _Plain(Pipeline):
    """A pipeline that leaves error replies as they are: bodies have no place in them."""

    def annotate_exception(self, *_: Any) -> None: ...


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
        (reply,) = await self.together([(step, arguments)])
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def together(self, calls: Sequence[Call]) -> list[Any]:
        """Make calls that may be repeated, sent at once, served in this order, each by itself.

        Returns each call's raw reply, or in its place the ResponseError that refused it. Raises
        LayoutMismatch, and what Redis raises where it does not answer, or is no primary any more;
        then some may be done.
        """
        for _ in range(_REPAIRS):
            replies = await self._send(calls)
            if not await self._repaired(replies):
                return replies
        return await self._send(calls)

    async def _send(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            try:
                return [await self.redis.fcall(*self._words(calls[0]))]
            except ResponseError as error:
                return [error]
        pipe = self._pipe(calls)
        return list(await pipe.execute(raise_on_error=False))

    def _pipe(self, calls: Sequence[Call]) -> Pipeline:
        pipe = _Plain(self.redis.connection_pool, self.redis.response_callbacks, False, None)
        for call in calls:
            pipe.fcall(*self._words(call))
        return pipe

    def _words(self, call: Call) -> tuple[Any, ...]:
        step, arguments = call
        return (function_name(step), 2, self.keys.layout, self.keys.never, *arguments)

    async def _repaired(self, replies: Sequence[Any]) -> bool:
        """Whether one of these was refused for something that is mended now."""
        for error in replies:
            text = str(error) if isinstance(error, ResponseError) else ""
            if "Function not found" in text:
                await self._load()
                return True
            if text.startswith("NOLAYOUT"):
                await self.redis.fcall(*self._words(("found", [self._defaults.stored()])))
                return True
            if text.startswith("LAYOUT"):
                raise LayoutMismatch(text) from error
        return False

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
