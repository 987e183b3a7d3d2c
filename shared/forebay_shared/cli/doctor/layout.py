"""Whether this version can read the pool at all."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_shared.cli.doctor.findings import Finding, failure, ok, warning
from forebay_shared.cli.doctor.pool_facts import Pool


def layout(pool: Pool) -> Iterator[Finding]:
    """Layout and settings are of a kind that this version knows."""
    if pool.is_foreign:
        yield failure(
            pool.why_unread,
            "this version refuses to touch keys that it does not understand",
            "use the version that founded the pool, or drain it and start it anew",
        )
    elif pool.why_unread:
        yield warning(
            f"it was not examined: {pool.why_unread}",
            "nothing is known of its requests",
            "`forebay doctor --load` loads this version's library beside the others",
        )
    elif pool.why_unreadable:
        yield failure(
            f"the stored settings cannot be used: {pool.why_unreadable}",
            "processes that start do not serve; those that run keep the old ones",
            "mend them with `forebay settings set`",
        )
    else:
        yield ok("layout and settings are known")
