"""Whether anybody serves the pool, and what keeps it from its work."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_shared.cli.doctor.findings import Finding, failure, ok, warning
from forebay_shared.cli.doctor.pool_facts import Pool


def workers(pool: Pool) -> Iterator[Finding]:
    """Workers live, the pool is switched on, and nothing ended as a dead letter."""
    if not pool.status:
        return
    yield from _living(pool)
    yield from _switches(pool)
    yield from _letters(pool)


def _living(pool: Pool) -> Iterator[Finding]:
    living, queued = pool.living(), pool.status["queued"]
    if living:
        yield ok(f"{len(living):,} alive")
    elif queued:
        yield failure(
            f"{queued:,} requests are queued and no worker is alive",
            "they wait until their deadlines pass",
            "start a worker: `forebay work --help`",
        )
    else:
        yield warning(
            "no worker is alive",
            "whatever comes waits",
            f"start one; or, if the pool is not used any more, `forebay drain --pool {pool.name}` "
            "lets producers refuse",
        )


def _switches(pool: Pool) -> Iterator[Finding]:
    if pool.status["paused"]:
        yield warning(
            "the pool is paused",
            "workers are given nothing",
            f"`forebay resume --pool {pool.name}` ends it",
        )
    if pool.status["draining"]:
        yield warning(
            "the pool drains",
            "new requests are refused",
            f"`forebay drain --pool {pool.name} --end` ends it",
        )


def _letters(pool: Pool) -> Iterator[Finding]:
    if letters := pool.status["dead"]:
        yield warning(
            f"{letters:,} dead letters",
            "each is a request that killed engines, was lost or could not be read",
            "`forebay dead ls` shows them",
        )
