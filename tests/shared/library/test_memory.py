"""At maxmemory and at size: what is refused, what goes on, and what no call may cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError
from tests.servers import Server
from tests.shared.library.driver import HeldLibrary, admit, finish, take
from tests.shared.library.rig import POOL, request_id

from forebay_shared.calls.library import HEAVY_ITEMS_PER_CALL
from forebay_shared.settings import ClassSettings, PoolSettings
from forebay_worker.emit import CHUNKS_OF_ENDS


def test_at_maxmemory_running_requests_finish_and_new_ones_are_refused(
    own_server: Server,
) -> None:
    """So memory falls by itself, and then all goes on."""
    client = Redis.from_url(own_server.url)
    library = HeldLibrary(client, POOL, PoolSettings())
    library.fcall("found", library.text)
    for number in range(20):
        admit(library, number)
    taken = take(library, "w1", 1, count=10)
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", "1")
    with pytest.raises(OutOfMemoryError):
        admit(library, 99)
    with pytest.raises(OutOfMemoryError):
        library.fcall("emit", "w1", 1, taken[0], 1, 0, 1, 0, 1, 1, "a", "")
    with pytest.raises(OutOfMemoryError):
        library.fcall("requeue", "1-1")
    for name in taken:
        assert finish(library, "w1", 1, name) == "ok"
    others = take(library, "w1", 2, count=10)
    row = [others[0], 2, "blameless", 0, 1, 0, 1, "drain", "{}", ""]
    assert library.fcall("release", "w1", 1, *row) == [b"queued"]
    assert library.fcall("renew", "w1", 1, others[1], 2, 1, 0, 1) == [b"ok"]
    assert library.fcall("cancel", others[2], "", "", 0) == b"cancelled"
    assert library.fcall("sweep", 0) == [0, 0, 0, 0, 0]
    assert library.fcall("reply", "r1.1", 1, others[1], -1)[0][1] == b"running"
    assert library.fcall("switch", "0", "0") == b"ok"
    client.config_set("maxmemory", "0")
    assert admit(library, 99)[0][0] == b"new"
    client.close()


@pytest.mark.timeout(120)
def test_no_call_is_slow_with_many_pending(own_server: Server) -> None:
    """With 10,000 running and 5,000 given back, a worker's full calls cost less than 5 ms each.

    Of the server's own processor time, so that a busy machine does not disturb; on average.
    """
    settings = PoolSettings(
        classes=(ClassSettings(name="normal", depth=1_000_000),), depth=1_000_000
    )
    client = Redis.from_url(own_server.url)
    library = HeldLibrary(client, POOL, settings)
    library.fcall("found", library.text)
    for at in range(0, 20_000, 100):
        admit_many(library, range(at, at + 100))
    granted = [(call, name) for call in range(1, 151) for name in take(library, "w1", call)]
    back = [granted.pop() for _ in range(5_000)]
    costs = {"release": cost(client, [partial(give_back, library, *one) for one in back])}
    takes = [partial(take, library, "w2", call, HEAVY_ITEMS_PER_CALL) for call in range(1, 101)]
    costs["take"] = cost(client, takes)
    ends = [partial(finish, library, "w1", *granted.pop()) for _ in range(100)]
    costs["finish"] = cost(client, ends)
    heavy = [partial(finish_take, library, call, granted) for call in range(1_000, 1_100)]
    costs["finish_take"] = cost(client, heavy)
    for _ in range(20):
        library.now_ms += 1_000
        library.fcall("sweep", 0)
    costs["sweep"] = cost(client, [partial(library.fcall, "sweep", 1)] * 100)
    assert client.zcard(library.prefix + "suspects:normal") > 1_500
    print("ms of the server a call:", {step: round(spent, 2) for step, spent in costs.items()})
    assert max(costs.values()) < 5
    client.close()


def finish_take(library: HeldLibrary, call: int, granted: list[tuple[int, str]]) -> None:
    """As much as a worker puts into one call: ends, the chunks that they bring along, grants."""
    count = CHUNKS_OF_ENDS // HEAVY_ITEMS_PER_CALL
    chunks = [count, *["event", ""] * count]
    ends: list[object] = []
    for _ in range(HEAVY_ITEMS_PER_CALL):
        held, name = granted.pop()
        ends += [name, held, "done", "", 1, 0, 1, "{}", "body", 0, *chunks]
    room = ["w1", call, 32, 1, HEAVY_ITEMS_PER_CALL, 1, "normal", HEAVY_ITEMS_PER_CALL]
    words, taken = library.fcall("finish_take", "w1", HEAVY_ITEMS_PER_CALL, *ends, *room)
    assert words == [b"ok"] * HEAVY_ITEMS_PER_CALL
    assert len(taken[0]) == HEAVY_ITEMS_PER_CALL


def give_back(library: HeldLibrary, call: int, name: str) -> None:
    row = [name, call, "blameless", 0, 1, 0, 1, "drain", "{}", ""]
    assert library.fcall("release", "w1", 1, *row) == [b"queued"]


def cost(client: Redis, calls: Sequence[Callable[[], object]]) -> float:
    """Processor time of the server for each of these calls, in ms."""
    before = processor_s(client)
    for call in calls:
        call()
    return 1_000 * (processor_s(client) - before) / len(calls)


def processor_s(client: Redis) -> float:
    used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def admit_many(library: HeldLibrary, numbers: range) -> None:
    arguments: list[object] = ["", len(numbers)]
    for number in numbers:
        arguments += [request_id(number), "normal", f"t{number % 20}", 1, 9_000_000, 1, "m"]
        arguments += [-1, -1, 0, 0, 0, "", "", 0, 0, 0, 0, "{}", "body"]
    library.fcall("admit", *arguments)
