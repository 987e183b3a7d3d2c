"""Every metric in one table: name, kind, labels, what it counts. Base units, bounded labels.

Labels are never a tenant, a model, a request id or anything that a client chooses freely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


TABLE = (
    Metric("forebay_admitted_total", "counter", ("class",), "Requests accepted."),
    Metric("forebay_refused_total", "counter", ("reason",), "Requests refused, by error code."),
    Metric("forebay_retry_after_seconds", "histogram", (), "Retry-After given."),
    Metric("forebay_replied_total", "counter", ("class", "state"), "Answers given, by state."),
    Metric("forebay_reply_seconds", "histogram", ("class",), "Admit to last byte of the answer."),
    Metric("forebay_first_event_seconds", "histogram", ("class",), "Admit to the first chunk."),
    Metric("forebay_waiters", "gauge", (), "Clients that wait in this replica."),
    Metric("forebay_redis_up", "gauge", (), "1 while the last call to Redis succeeded."),
    Metric("forebay_redis_evicts", "gauge", (), "1 while Redis may evict keys: requests."),
    Metric("forebay_redis_calls_total", "counter", ("step",), "Trips to the function library."),
    Metric("forebay_taken_total", "counter", ("class",), "Requests granted to this worker."),
    Metric("forebay_queued_seconds", "histogram", ("class",), "Admit to grant."),
    Metric("forebay_ended_total", "counter", ("class", "state"), "Requests this worker ended."),
    Metric("forebay_released_total", "counter", ("blame",), "Requests given back, by blame."),
    Metric("forebay_resumed_total", "counter", (), "Streams gone on with after a cut."),
    Metric("forebay_lost_leases_total", "counter", (), "Leases found lost while running."),
    Metric("forebay_stale_writes_total", "counter", ("step",), "Writes refused: lease lost."),
    Metric("forebay_tokens_total", "counter", ("kind",), "Tokens: prompt, cached, output."),
    Metric("forebay_emitted_chunks_total", "counter", (), "Chunks emitted."),
    Metric("forebay_slots", "gauge", (), "Slots of this worker now."),
    Metric("forebay_held", "gauge", (), "Requests that this worker runs."),
    Metric("forebay_engine_up", "gauge", (), "1 while the engine's health check succeeds."),
    Metric("forebay_swept_total", "counter", ("what",), "expired, retried, reclaimed, repaired."),
    Metric("forebay_pool_queued", "gauge", ("class",), "Queued requests of the class."),
    Metric("forebay_pool_oldest_wait_seconds", "gauge", ("class",), "Age of the oldest waiting."),
)


class Metrics:
    """The table's collectors in a registry of their own; one object per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._by_name = {one.name: self._collector(one) for one in TABLE}

    def _collector(self, one: Metric) -> Counter | Gauge | Histogram:
        if one.kind == "counter":
            return Counter(one.name, one.help, one.labels, registry=self.registry)
        if one.kind == "gauge":
            return Gauge(one.name, one.help, one.labels, registry=self.registry)
        return Histogram(one.name, one.help, one.labels, buckets=SECONDS, registry=self.registry)

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        """Add to a counter of the table."""
        found = self._by_name[name]
        assert isinstance(found, Counter)
        (found.labels(**labels) if labels else found).inc(by)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge of the table."""
        found = self._by_name[name]
        assert isinstance(found, Gauge)
        (found.labels(**labels) if labels else found).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Note one value in a histogram of the table; seconds."""
        found = self._by_name[name]
        assert isinstance(found, Histogram)
        (found.labels(**labels) if labels else found).observe(value)
