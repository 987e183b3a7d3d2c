"""What one producer process is told: where to listen, whom to ask, and its own timings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

KIB = 1024


@dataclass(frozen=True, slots=True)
class Timings:
    """Waits and bounds of one replica. What a whole pool obeys is in the pool's settings."""

    status_after_s: float = 10.0
    """A stream's status goes out with its first event, or after so long."""
    comment_every_s: float = 10.0
    """A silent stream gets a comment line this often, so that no proxy takes it for dead."""
    floor_s: float = 1.0
    """A waiter that had no answer for so long asks by itself: news may be lost."""
    refresh_s: float = 1.0
    """Models, settings and memory are read this often."""
    stale_s: float = 3.0
    """Redis counts as away when nothing could be read for so long after it was due."""
    inbox_ttl_s: float = 60.0
    inbox_renew_s: float = 20.0
    """Life of the inbox in Redis, and how often it is renewed: two renewals may fail."""
    block_s: float = 5.0
    """The inbox is read blocking, so long at a time."""
    upload_silence_s: float = 60.0
    """A body that stops coming for so long is given up."""
    serve_on_s: float = 5.0
    """After SIGTERM new requests are still served: load balancers need time to notice."""
    grace_s: float = 600.0
    """Then open answers get so long to finish."""
    last_words_s: float = 1.0
    """Then streams get so long to send their error event before they are cut."""
    wait_limit_s: float = 60.0
    """Longest `?wait=`."""
    overdue_s: float = 5.0
    """A synchronous waiter gives up so long after its deadline if Redis does not say so itself."""
    leave_for_s: float = 600.0
    """Redis is told so long that a client left; after that the deadline ends its request."""
    full_share: float = 0.85
    """New requests are refused from this share of Redis' maxmemory, to keep room for results."""
    reader_bytes: int = 256 * KIB
    """Chunks kept for one slow reader before no more are asked for."""

    def __post_init__(self) -> None:
        if self.inbox_ttl_s < 3 * self.inbox_renew_s:
            raise ValueError("inbox_ttl_s must be at least 3 × inbox_renew_s")
        if self.inbox_renew_s < self.block_s:
            raise ValueError(
                "inbox_renew_s must be at least block_s: renewals happen between reads"
            )
        if self.last_words_s > 1:
            raise ValueError("last_words_s must be at most 1: 2 s after the grace all must be over")
        if not 0 < self.full_share <= 1:
            raise ValueError("full_share must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to run a producer.

    `admin`: `HOST:PORT` of a listener of its own for metrics and health, or empty. `pools`: the
    pools to serve; empty: all that workers have registered. `keys_file`: API keys; without it
    there is one tenant, and only loopback or a socket may be listened on unless `insecure`.
    `uds`: a unix socket to listen on instead of host and port.
    """

    redis_url: str
    host: str = "127.0.0.1"
    port: int = 8000
    admin: str = ""
    pools: tuple[str, ...] = ()
    keys_file: Path | None = None
    insecure: bool = False
    uds: Path | None = None
    timings: Timings = field(default_factory=Timings)
