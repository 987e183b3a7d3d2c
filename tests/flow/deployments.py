"""The Redis below the flow tests: one server, a cluster, or servers that Sentinels watch.

`--redis-kind` chooses. A server of its own for each system takes 50 ms; clusters and Sentinels take
seconds, so they are emptied and used again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import redis
from tests.clusters import Cluster
from tests.sentinels import Watched
from tests.servers import start_server

KINDS = ("single", "cluster", "sentinel")


class Deployment(Protocol):
    """What producers and workers are pointed at."""

    url: str

    def stop(self) -> None: ...


class Deployments:
    """Gives each system a Redis of the chosen kind that is empty and its own."""

    def __init__(self) -> None:
        self.kind = "single"
        self._kept: list[Deployment] = []
        self._free: list[Deployment] = []

    def take(self, folder: Path) -> Deployment:
        """An empty one."""
        if self.kind == "single":
            return start_server(folder)
        if not self._free:
            make: Any = Cluster if self.kind == "cluster" else Watched
            self._free.append(make(folder / "redis"))
            self._kept += self._free
        return self._free.pop()

    def give_back(self, one: Deployment) -> None:
        """Its system has ended: those made here are used again, others stopped."""
        if one not in self._kept:
            one.stop()
            return
        empty(one)
        self._free.append(one)

    def stop(self) -> None:
        """End those that are kept."""
        for one in self._kept:
            one.stop()
        self._kept, self._free = [], []


def empty(one: Any) -> None:
    """Delete all keys on all primaries. Function libraries stay, as with FLUSHALL."""
    urls = [node.server.url for node in one.primaries()] if isinstance(one, Cluster) else []
    for url in urls or [one.primary.url]:
        with redis.Redis.from_url(url) as client:
            client.flushall()


deployments = Deployments()
"""Of this test session."""
