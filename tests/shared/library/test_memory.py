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
    """With 10,000 running and 5,000 given back, full calls cost less than 5 ms each, by far.

    Of the server's own processor time, so that a busy machine does not disturb; on average.
    """
    classes = tuple(ClassSettings(name=name, depth=1_000_000) for name in ("normal", "brief"))
    settings = PoolSettings(classes=classes, depth=1_000_000)
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
    ends = [partial(finish_full, library, HEAVY_ITEMS_PER_CALL, granted) for _ in range(100)]
    costs["finish"] = cost(client, ends)
    both = [partial(finish_take, library, call, granted) for call in range(1_000, 1_100)]
    costs["finish_take"] = cost(client, both)
    admit_many(library, range(20_000, 20_100), "brief", 1)
    admit_many(library, range(20_100, 20_200), "brief", 1)
    library.now_ms += 1
    takes = [partial(take_of_both, library, call) for call in range(60)]
    costs["take, others expire"] = cost(client, takes)
    assert int(client.hget(library.prefix + "ledger", "expired") or 0) > 150
    expire(client, library, [name for _, name in granted[:400]])
    full = [partial(full_sweep, library)] * 100
    costs["sweep, deadlines"] = cost(client, full)
    for _ in range(20):
        library.now_ms += 1_000
        library.fcall("sweep", 0)
    costs["sweep, leases"] = cost(client, [partial(library.fcall, "sweep", 1)] * 550)
    assert client.zcard(library.prefix + "suspects:normal") > 1_500
    print("ms of the server a call:", {step: round(spent, 2) for step, spent in costs.items()})
    assert max(costs.values()) < 2.5
    client.close()


def test_no_audit_is_slow_where_bodies_are_large(own_server: Server) -> None:
    """It reads streams, and with them all that waits: a few large entries a call."""
    client = Redis.from_url(own_server.url)
    library = HeldLibrary(client, POOL, PoolSettings())
    library.fcall("found", library.text)
    for number in range(40):
        item = [request_id(number), "normal", "ann", 1, 9_000_000, 1, "m", -1, -1, 0, 0, 0, "", ""]
        library.fcall("admit", "", 1, *item, 0, 0, 0, 0, "{}", b"x" * (256 << 10))

    def audit() -> None:
        library.now_ms += 6_000
        assert library.fcall("sweep", 0)

    spent = cost(client, [audit] * 100)
    print(f"ms of the server an audit: {spent:.2f}")
    assert spent < 2.5
    client.close()


def full_ends(count: int, granted: list[tuple[int, str]]) -> list[object]:
    """So many ends with the chunks that a worker lets them bring along."""
    each = CHUNKS_OF_ENDS // count
    ends: list[object] = [count]
    for _ in range(count):
        held, name = granted.pop()
        ends += [name, held, "done", "", 1, 0, 1, "{}", "body", 0, each, *["event", ""] * each]
    return ends


def finish_full(library: HeldLibrary, count: int, granted: list[tuple[int, str]]) -> None:
    assert library.fcall("finish", "w1", *full_ends(count, granted)) == [b"ok"] * count


def finish_take(library: HeldLibrary, call: int, granted: list[tuple[int, str]]) -> None:
    """An end, and beside it as many grants as one call may make."""
    count = HEAVY_ITEMS_PER_CALL - 1
    room = ["w1", call, 32, 1, count, 1, "normal", count]
    words, taken = library.fcall("finish_take", "w1", *full_ends(1, granted), *room)
    assert (words, len(taken[0])) == ([b"ok"], count)


def take_of_both(library: HeldLibrary, call: int) -> None:
    """Grants, and ends what expired on its way, as many as it may."""
    room = [2, "normal", HEAVY_ITEMS_PER_CALL - 1, "brief", HEAVY_ITEMS_PER_CALL]
    library.fcall("take", "w3", call, 32, 1, HEAVY_ITEMS_PER_CALL, *room)


def expire(client: Redis, library: HeldLibrary, names: Sequence[str]) -> None:
    """Streams that four replicas watch are over their time."""
    replicas = [f"r{number}.1" for number in range(4)]
    for replica in replicas:
        client.xadd(f"{library.prefix}inbox:{replica}", {"made": "1"})
    for name in names:
        client.zadd(library.prefix + "deadlines", {name: 1})
        fields = {"deadline": "1", "stream": "1", "watchers": ",".join(replicas)}
        client.hset(f"{library.prefix}request:{name}", mapping=fields)


def full_sweep(library: HeldLibrary) -> None:
    assert library.fcall("sweep", 1)[0] == 3


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


def admit_many(
    library: HeldLibrary, numbers: range, class_name: str = "normal", timeout: int = 9_000_000
) -> None:
    arguments: list[object] = ["", len(numbers)]
    for number in numbers:
        arguments += [request_id(number), class_name, f"t{number % 20}", 1, timeout, 1, "m"]
        arguments += [-1, -1, 0, 0, 0, "", "", 0, 0, 0, 0, "{}", "body"]
    assert {answer[0] for answer in library.fcall("admit", *arguments)} == {b"new"}
