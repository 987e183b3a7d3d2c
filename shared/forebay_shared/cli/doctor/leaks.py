"""Keys and consumers that nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_shared.cli.doctor.findings import Finding, ok, warning
from forebay_shared.cli.doctor.pool_facts import Pool
from forebay_shared.cli.doctor.scan import Scan

SHOWN = 5


def leaks(pool: Pool) -> Iterator[Finding]:
    """Each key has a TTL or is needed; each consumer holds something."""
    if pool.scan is None:
        return
    if not pool.scan.complete:
        yield warning(
            f"only {pool.scan.seen:,} keys were looked at in the time allowed",
            "there may be more than was found",
            "allow more: --scan-s",
        )
    yield from _keys(pool.scan)
    yield from _consumers(pool.scan)


def _keys(scan: Scan) -> Iterator[Finding]:
    if not scan.leaked:
        yield ok(f"none among {scan.seen:,} keys")
    for why in sorted(set(scan.leaked.values())):
        names = sorted(name for name, told in scan.leaked.items() if told == why)
        yield warning(
            f"{len(names):,} keys leaked ({why}): {_some(names)}",
            "they take memory for ever, or for longer than they should; Forebay leaves none "
            "behind, so keys were evicted, restored or written by somebody else",
            "look at them, then DEL them",
        )


def _consumers(scan: Scan) -> Iterator[Finding]:
    if scan.idle:
        yield warning(
            f"{len(scan.idle):,} consumers hold nothing, in {_some([one for one, _ in scan.idle])}",
            "they make each look at the queue's group slower; Forebay removes its own",
            "XGROUP DELCONSUMER them where XINFO CONSUMERS says that they have 0 pending",
        )


def _some(names: list[bytes]) -> str:
    shown = [name.decode(errors="replace") for name in sorted(names)[:SHOWN]]
    more = [f"and {len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return ", ".join(shown + more)
