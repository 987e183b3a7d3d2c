"""Deployments whose primary can be lost, killed or hanging, and is replaced by a replica."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from tests.clusters import Cluster
from tests.flow.processes import until
from tests.flow.system import POOL
from tests.sentinels import Watched

from forebay_shared.keys import Keys

KEY = Keys(POOL).layout
SILENCE_S = 1.0
SERVING_WITHIN_S = 5.0
"""Once another primary is there."""


class Failing:
    """A deployment whose primary can be lost."""

    def __init__(self, below: Cluster | Watched, primary: Callable[[], Any]) -> None:
        self.below = below
        self._primary = primary
        self._lost: Any = None

    def lose(self, how: str = "kill") -> None:
        """The pool's primary is gone; `pause`: it hangs."""
        self._lost = self._primary()
        getattr(self._lost, how)()

    async def until_replaced(self) -> None:
        """Return when another one serves."""

        async def holds() -> bool:
            try:
                return self._primary() is not self._lost
            except (redis.RedisError, StopIteration, ValueError):
                return False

        await until(holds, 20, "another primary serves")


def failing(kind: str, folder: Path, replicas: int = 1) -> Failing:
    if kind == "cluster":
        cluster = Cluster(folder / "redis", [KEY] * replicas, SILENCE_S)
        return Failing(cluster, lambda: cluster.owner(KEY).server)
    watched = Watched(folder / "redis", replicas, silence_s=SILENCE_S)
    return Failing(watched, lambda: _serving(watched))


def _serving(watched: Watched) -> Any:
    primary = watched.primary
    with redis.Redis.from_url(primary.url, socket_timeout=0.5) as client:
        if client.role()[0] != b"master":
            raise ValueError("not yet")
    return primary
