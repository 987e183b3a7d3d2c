"""Joining the pool: it serves one set of models, and a worker with others must stay out.

A request may be granted to any worker of its pool, and one that lacks its model would end it with
404. So when the engine's models are first known they are compared with those of the other workers
in the registry, and nothing is taken before that:

none in common    this worker ends, and says that it belongs into another pool
some in common    it serves, and warns: requests for the others fail on some workers
no difference     it serves; also where nobody else is there, or the engine lists no models

It compares, registers its models and compares again: of two that come at the same time the one that
registers later finds the other, so that they cannot both stay. Both may leave; then the first that
is started again stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from forebay_shared.calls import Operator
from forebay_shared.calls.library import ITEMS_PER_CALL
from forebay_shared.errors import Unusable
from forebay_shared.logs import event
from forebay_worker.link import Link
from forebay_worker.pulse import Pulse
from forebay_worker.registry import Registry

NAMED = 10
"""Models that a message names; the rest are counted."""


class Join:
    """Lets this worker into the pool, once."""

    def __init__(
        self,
        worker: str,
        pool: str,
        operator: Operator,
        registry: Registry,
        pulse: Pulse,
        link: Link,
    ) -> None:
        self._worker = worker
        self._pool = pool
        self._operator = operator
        self._registry = registry
        self._pulse = pulse
        self._link = link

    async def run(self) -> None:
        """Join when the engine has told its models. Raises Unusable where they do not fit."""
        await self._pulse.listed.wait()
        ours = set(self._pulse.models[:ITEMS_PER_CALL])
        if ours:
            self._require_fit(ours, await self._link.until_answered("status", self._others))
            self._registry.show(ours)
            others = await self._link.until_answered("status", self._others_once_registered)
            self._require_fit(ours, others)
            self._warn(ours, others)
        self._pulse.join()

    async def _others(self) -> list[set[str]]:
        """The models of each other worker that serves and has told some."""
        workers = (await self._operator.status())["workers"]
        return [
            set(one["models"])
            for one in workers
            if one["id"] != self._worker and one["state"] == "serving" and one["models"]
        ]

    async def _others_once_registered(self) -> list[set[str]]:
        await self._registry.register()
        return await self._others()

    def _require_fit(self, ours: set[str], others: list[set[str]]) -> None:
        theirs = set().union(*others)
        if theirs and not ours & theirs:
            raise Unusable(
                f"this engine serves {_named(ours)}, but the workers of pool {self._pool} serve "
                f"{_named(theirs)}; a pool serves one set of models: name another with --pool"
            )

    def _warn(self, ours: set[str], others: list[set[str]]) -> None:
        if any(theirs != ours for theirs in others):
            theirs = _named(set().union(*others))
            event("models differ", logging.WARNING, ours=_named(ours), theirs=theirs)


def _named(models: Iterable[str]) -> str:
    names = sorted(models)
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join(names[:NAMED] + more)
