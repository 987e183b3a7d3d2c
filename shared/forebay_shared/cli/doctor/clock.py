"""The server's clock: leases, deadlines and lives of results are measured by it."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_shared.cli.doctor.facts import Server
from forebay_shared.cli.doctor.findings import Finding, ok, warning

APART_S = 5.0
"""Further apart, and times in answers and ids puzzle people; a result may be called unknown."""


def clock(server: Server) -> Iterator[Finding]:
    """It agrees with this machine's, and does not run backwards."""
    if server.clock.went_back_s > 0:
        yield warning(
            f"the server's clock went back by {server.clock.went_back_s:.3f} s while it was asked",
            "leases and deadlines last longer by every step back",
            "let its machine's time service slew the clock and not step it",
        )
    ahead_s = server.clock.ahead_s
    if abs(ahead_s) - server.clock.doubt_s <= APART_S:
        yield ok(f"clocks agree within {abs(ahead_s) + server.clock.doubt_s:.3f} s")
        return
    yield warning(
        f"the server's clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} "
        "this machine's",
        "leases and deadlines go by the server's alone and hold; but ids carry the producer's "
        "time, by which an expired result (410) is told from an unknown one (404)",
        "run a time service on both",
    )
