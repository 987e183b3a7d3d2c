"""Whether Redis may evict keys, watched by every process."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from forebay_shared.logs import event
from forebay_shared.metrics import Metrics

NEVER = "noeviction"
_WHY = "an evicted key is a lost request"


class EvictionWatch:
    """Tells `maxmemory-policy` as a metric, and as an error in the log whenever it turns bad."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._told = NEVER

    def look(self, memory: Mapping[str, object]) -> None:
        """Judge what `INFO memory` says."""
        policy = str(memory.get("maxmemory_policy", NEVER))
        self._metrics.set("forebay_redis_evicts", float(policy != NEVER))
        if policy not in (NEVER, self._told):
            event("redis_evicts", logging.ERROR, policy=policy, want=NEVER, why=_WHY)
        self._told = policy
