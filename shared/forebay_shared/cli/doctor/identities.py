"""Whether the pool's numbers agree, and whether it is swept."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_shared.calls.doctor import Counts
from forebay_shared.cli.doctor.findings import Finding, failure, ok, warning
from forebay_shared.cli.doctor.pool_facts import Pool

LATE_MS = 10_000
"""Every process offers a sweep each second."""
BACK_MS = 1_000


def identities(pool: Pool) -> Iterator[Finding]:
    """Every accepted request is queued, running or ended, and counted once in each place."""
    if pool.counts is None:
        return
    broken = [told for told, left, right in _pairs(pool.counts) if left != right]
    if broken:
        yield failure(
            "; ".join(broken),
            "a request has vanished or is counted twice: keys were evicted, deleted or written by "
            "somebody else",
            "the sweep ends what it finds as `lost`; see `forebay_swept_total` and who else uses "
            "this Redis. A flush of it makes these numbers agree again, and loses everything",
        )
    else:
        yield ok(f"{pool.counts.accepted:,} accepted, {pool.counts.ended:,} of them ended")
    yield from _foreign(pool.counts)


def _pairs(one: Counts) -> list[tuple[str, int, int]]:
    """What must be equal, with its words."""
    places = one.waiting + one.suspects + one.delayed
    live = one.queued + one.running
    pairs = [
        ("accepted = queued + running + ended", one.accepted, live + one.ended),
        ("queued = waiting + suspects + delayed", one.queued, places),
        ("queued = its sum over classes", one.queued, one.queued_of_classes),
        ("running = leases", one.running, one.leases),
        ("running = its sum over classes", one.running, one.running_of_classes),
        ("deadlines = queued + running", one.deadlines, live),
        # More are somebody else's entries: told apart.
        ("entries in streams ≥ queued + running", min(live, one.entries or live), live),
    ]
    return [(f"{name} does not hold: {a:,} and {b:,}", a, b) for name, a, b in pairs]


def _foreign(one: Counts) -> Iterator[Finding]:
    more = (one.entries or 0) - one.queued - one.running
    if more > 0 or one.undecodable:
        yield warning(
            f"{max(more, 0):,} entries in the queues are not Forebay's; {one.undecodable:,} such "
            "were put among the dead letters",
            "somebody else writes to these keys",
            "find out who: ACL users (`forebay doctor --acl`) keep others away",
        )


def sweeps(pool: Pool) -> Iterator[Finding]:
    """Somebody sweeps, and the server's clock did not go back since."""
    if pool.counts is None:
        return
    ago_ms = pool.counts.now_ms - pool.counts.swept_ms
    if ago_ms < -BACK_MS:
        yield warning(
            f"the last sweep is {-ago_ms / 1000:.1f} s in the future: the server's clock went back",
            "leases, deadlines and results last longer by that",
            "let its machine's time service slew the clock and not step it",
        )
    elif ago_ms > LATE_MS:
        ever = f"swept for {ago_ms / 1000:.0f} s" if pool.counts.swept_ms else "ever swept"
        yield warning(
            f"nobody has {ever}",
            "deadlines, retries and the requests of dead workers wait for a sweep",
            "start a worker or a producer: each of them sweeps",
        )
    else:
        yield ok(f"swept {max(ago_ms, 0) / 1000:.1f} s ago")
