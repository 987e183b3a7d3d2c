"""At maxmemory and at size: what is refused, what goes on, and what no call may cost."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError
from tests.servers import Server
from tests.shared.library.driver import HeldLibrary, admit, finish, take
from tests.shared.library.rig import POOL, request_id

from forebay_shared.settings import ClassSettings, PoolSettings


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
        library.fcall("requeue", "1-1", request_id(99))
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
    """With 20,000 running and 10,000 given back, calls of usual size take less than 5 ms.

    Nine in ten of each kind: a busy machine takes the server's core away now and then.
    """
    settings = PoolSettings(
        classes=(ClassSettings(name="normal", depth=1_000_000),), depth=1_000_000
    )
    client = Redis.from_url(own_server.url)
    library = HeldLibrary(client, POOL, settings)
    library.fcall("found", library.text)
    for at in range(0, 40_000, 100):
        admit_many(library, range(at, at + 100))
    granted = {call: take(library, f"w{call % 50}", call) for call in range(1, 301)}
    for call in range(3, 301, 3):
        give_back(library, call, granted[call])
    client.config_set("slowlog-max-len", 10_000)
    client.config_set("slowlog-log-slower-than", 0)
    for call in range(301, 401):
        names = take(library, f"w{call % 50}", call, count=8)
        give_back(library, call, names[:4])
        for name in names[4:]:
            finish(library, f"w{call % 50}", call, name)
    for _ in range(60):
        library.now_ms += 1_000
        library.fcall("sweep", 0)
    client.config_set("slowlog-log-slower-than", -1)
    for step, spent in durations(client).items():
        print(f"{step}: {len(spent)} calls, nine in ten below {spent[len(spent) * 9 // 10]} us")
        assert spent[len(spent) * 9 // 10] < 5_000
    client.close()


def give_back(library: HeldLibrary, call: int, names: list[str]) -> None:
    rows = [[name, call, "blameless", 0, 1, 0, 1, "drain", "{}", ""] for name in names]
    flat = [value for row in rows for value in row]
    library.fcall("release", f"w{call % 50}", len(rows), *flat)


def durations(client: Redis) -> dict[str, list[int]]:
    """Function → how long its calls took, in µs, sorted."""
    spent: dict[str, list[int]] = {}
    for entry in client.slowlog_get(10_000):
        words = entry["command"].decode(errors="replace").split()
        if words[0] == "FCALL":
            spent.setdefault(words[1].split("_")[1], []).append(entry["duration"])
    return {step: sorted(times) for step, times in spent.items()}


def admit_many(library: HeldLibrary, numbers: range) -> None:
    arguments: list[object] = ["", len(numbers)]
    for number in numbers:
        arguments += [request_id(number), "normal", f"t{number % 20}", 1, 9_000_000, 1, "m"]
        arguments += [-1, -1, 0, 0, 0, "", "", 0, 0, 0, 0, "{}", "body"]
    library.fcall("admit", *arguments)
