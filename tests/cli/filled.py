"""A pool with something in it, for the commands of operators."""

from __future__ import annotations

from forebay_shared.calls import Admission, Duties, Intake, Leases, Library, Take
from forebay_shared.calls.duties import Registration
from forebay_shared.connect import connect
from forebay_shared.ids import new_request_id
from forebay_shared.keys import POOLS
from forebay_shared.records import Envelope


async def fill(url: str, pool: str = "default") -> None:
    """A pool with two requests queued, one running, and a worker that runs it."""
    async with connect(url) as redis:
        library = Library(redis, pool)
        await library.start()
        envelope = Envelope("/v1/completions", "big", b"{}")
        for class_name in ("high", "high", "low"):
            one = Admission(new_request_id(pool), class_name, "acme", envelope, 60_000)
            await Intake(library).admit([one])
        await Leases(library).take(Take("w1", 1, 8, 1, {"high": 1}))
        about = {"engine": "sim", "host": "box", "pid": "1"}
        await Duties(library).register(
            Registration("w1", "serving", 8, ["high"], ["big"], 1, about)
        )
        await redis.zadd(POOLS, {pool: 1})
