"""take: call numbers, what is left for others, suspects, bells."""

from __future__ import annotations

from redis import Redis
from tests.shared.library.driver import HeldLibrary, admit, take
from tests.shared.library.rig import Rig, done, given_back, plain, request_id, room


def ids(answer: list[list[list[bytes]]]) -> list[str]:
    return [row[0].decode() for row in answer[0]]


def test_the_same_call_again_grants_nothing_new(rig: Rig) -> None:
    """It names the grants of it that are still held."""
    rig.admit([plain(n) for n in range(4)])
    first = rig.take(room("w1", 1, count=2))
    assert rig.take(room("w1", 1, count=2)) == first
    rig.finish("w1", [done(0, 1)])
    assert ids(rig.take(room("w1", 1, count=4))) == [request_id(1)]
    rig.check()


def test_a_lower_call_number_gets_an_empty_answer(rig: Rig) -> None:
    """It was made before the last one, and whoever made it has stopped waiting."""
    rig.admit([plain(1)])
    rig.take(room("w1", 2, count=0))
    assert rig.take(room("w1", 1)) == [[], []]
    rig.check()


def test_a_lease_that_was_lost_is_not_named_again(rig: Rig) -> None:
    rig.admit([plain(1)])
    rig.take(room("w1", 1))
    rig.release("w1", [given_back(1, 1, "blameless")])
    rig.take(room("w2", 1))
    assert ids(rig.take(room("w1", 1))) == []
    rig.check()


def test_given_back_requests_come_before_new_ones_of_their_flow(rig: Rig) -> None:
    """In order of arrival, whatever the order in which they came back."""
    rig.admit([plain(n) for n in range(4)])
    rig.take(room("w1", 1, count=3))
    for number in (2, 0):
        rig.release("w1", [given_back(number, 1, "blameless")])
    assert ids(rig.take(room("w2", 1))) == [request_id(0), request_id(2), request_id(3)]
    rig.check()


def test_expired_ones_end_on_the_way_and_leave_nothing_behind(rig: Rig) -> None:
    """No consumer of the taker either: a name per worker that came by would stay for ever."""
    rig.admit([plain(1, timeout=10), plain(2), plain(3)])
    rig.take(room("w1", 1, count=0))
    rig.pass_time(10)
    rig.take(room("w2", 1, count=1, free={"normal": 1}))
    rig.check()
    assert rig.oracle.requests[request_id(1)].state == "expired"


def test_a_take_ends_few_on_its_way_and_rings_for_the_rest(rig: Rig) -> None:
    """After an outage much may have expired: no call shall take long for it, and nobody waits."""
    rig.admit([plain(n, timeout=10) for n in range(5)] + [plain(5)])
    rig.admit([plain(7, "low")])
    rig.pass_time(10)
    for _ in range(6):
        rig.hear_bell("normal")
    rig.hear_bell("low")
    assert ids(rig.take(room("w1", 1))) == []
    rig.check()
    assert sum(one.state == "expired" for one in rig.oracle.requests.values()) == 3
    assert (rig.oracle.bells["normal"], rig.oracle.bells["low"]) == (1, 1)
    assert request_id(5) in ids(rig.take(room("w1", 2)))
    rig.check()


def test_a_worker_that_only_ended_something_leaves_no_name(rig: Rig) -> None:
    rig.admit([plain(1, timeout=10), plain(2, wire=2)])
    rig.pass_time(10)
    rig.take(room("w1", 1))
    rig.check()


def test_a_newer_wire_version_is_left_for_newer_workers(rig: Rig) -> None:
    """At its place; other flows go on."""
    rig.admit([plain(1, wire=2), plain(2), plain(3, tenant="bob")])
    assert ids(rig.take(room("w1", 1))) == [request_id(3)]
    rig.check()
    assert ids(rig.take(room("w2", 1, wire=2))) == [request_id(1), request_id(2)]
    rig.check()


def test_many_flows_that_wait_for_newer_workers_hide_no_other(rig: Rig) -> None:
    """In the midst of a rolling deploy: the old workers' own tenants are served on."""
    rig.admit([plain(n, tenant=f"new{n}", wire=2) for n in range(20)])
    rig.admit([plain(20, tenant="old")])
    assert ids(rig.take(room("w1", 1))) == [request_id(20)]
    rig.check()


def test_large_ones_for_newer_workers_are_read_once_and_few_a_call(rig: Rig) -> None:
    """No call takes long for their bodies, and whoever waits behind them is found all the same."""
    large = {"body": b"x" * 400_000, "wire": 2}
    rig.admit([plain(n, tenant=f"new{n}", **large) for n in range(4)])
    rig.admit([plain(4, tenant="old")])
    for _ in range(6):
        rig.hear_bell("normal")
    assert ids(rig.take(room("w1", 1))) == []
    rig.check()
    places = [one.place for one in rig.oracle.requests.values()]
    assert places == ["returned"] * 3 + ["waiting"] * 2
    assert rig.oracle.bells["normal"] == 1
    assert ids(rig.take(room("w1", 2))) == [request_id(4)]
    rig.check()
    assert ids(rig.take(room("w1", 3))) == []
    rig.check()


def test_a_take_stops_after_a_mebibyte_of_payload(rig: Rig) -> None:
    """And gives at least one."""
    rig.admit([plain(n, body=b"x" * 600_000) for n in range(3)])
    assert len(ids(rig.take(room("w1", 1)))) == 2
    rig.admit([plain(9, body=b"x" * 3_000_000)])
    assert len(ids(rig.take(room("w1", 2)))) == 2
    rig.check()


def test_a_take_grants_no_more_of_a_class_than_is_free_for_it(rig: Rig) -> None:
    """However much of it waits, and whatever room there is for others."""
    rig.admit([plain(n) for n in range(4)])
    rig.admit([plain(n, "high") for n in range(4, 6)])
    taken = ids(rig.take(room("w1", 1, count=4, free={"normal": 1, "high": 0, "low": 3})))
    assert taken == [request_id(0)]
    rig.check()


def test_a_paused_pool_gives_nothing_and_rings_when_it_goes_on(rig: Rig) -> None:
    rig.admit([plain(1)])
    rig.switch(True, None)
    rig.hear_bell("normal")
    assert ids(rig.take(room("w1", 1))) == []
    rig.switch(False, None)
    assert rig.oracle.bells["normal"] == 1
    assert ids(rig.take(room("w1", 2))) == [request_id(1)]
    rig.check()


def test_a_take_rings_once_more_where_some_are_left(rig: Rig) -> None:
    """And takes the bell away where none are."""
    rig.admit([plain(1), plain(2)])
    rig.hear_bell("normal")
    rig.hear_bell("normal")
    rig.take(room("w1", 1, count=1))
    assert rig.oracle.bells["normal"] == 1
    rig.take(room("w1", 2))
    rig.check()
    assert rig.client.exists(rig.library.prefix + "bell:normal") == 0


def test_bells_are_bounded(rig: Rig) -> None:
    rig.admit([plain(n) for n in range(80)])
    rig.check()
    assert rig.client.llen(rig.library.prefix + "bell:normal") == 64


def test_a_worker_holds_few_suspects(rig: Rig) -> None:
    """With 16 slots 4 that crashed once, or 1 that crashed twice; ordinary work goes on beside."""
    rig.admit([plain(n) for n in range(8)])
    rig.take(room("w1", 1, slots=16, count=6))
    rig.release("w1", [given_back(n, 1, "crashed") for n in range(6)])
    held = ids(rig.take(room("w2", 1, slots=16)))
    assert held == [request_id(n) for n in (0, 1, 2, 3, 6, 7)]
    rig.check()


def test_one_whose_cap_is_one_is_held_alone_among_suspects(rig: Rig) -> None:
    """Then a crash is solo, and the second one of that kind convicts."""
    rig.admit([plain(n) for n in range(3)])
    rig.take(room("w1", 1, slots=4))
    rig.release("w1", [given_back(0, 1, "crashed"), given_back(1, 1, "crashed")])
    for worker in ("w2", "w3"):
        assert ids(rig.take(room(worker, 1, slots=4))) == [request_id(0)]
        rig.release(worker, [given_back(0, 1, "crashed")])
        rig.check()
    assert rig.oracle.requests[request_id(0)].state == "dead"
    assert rig.oracle.requests[request_id(1)].state == "queued"


def crash_at(rig: Rig, numbers: range, times: int) -> None:
    """Each of these crashes so often, among others of its kind."""
    for life in range(times):
        worker = f"dying{numbers.start}.{life}"
        rows = rig.take(room(worker, 1, wire=2, slots=10_000, count=len(numbers)))[0]
        assert sorted(row[0].decode() for row in rows) == [request_id(n) for n in numbers]
        rig.release(worker, [given_back(n, 1, "crashed") for n in numbers])


def test_suspects_for_newer_workers_hide_none(rig: Rig) -> None:
    """In the midst of a rolling deploy, however many there are; nor do they hide ordinary work."""
    rig.admit([plain(n, wire=2) for n in range(60)])
    crash_at(rig, range(60), 1)
    rig.switch(True, None)
    rig.admit([plain(60), plain(61)])
    rig.switch(False, None)
    assert ids(rig.take(room("w1", 1, count=1))) == [request_id(60)]
    rig.release("w1", [given_back(60, 1, "crashed")])
    assert ids(rig.take(room("w2", 1, slots=64))) == [request_id(60), request_id(61)]
    rig.check()


def test_suspects_that_a_worker_may_not_hold_hide_none(rig: Rig) -> None:
    """Sixty that crashed twice are older; a worker with its share of those takes one younger."""
    rig.admit([plain(n) for n in range(60)])
    crash_at(rig, range(60), 2)
    rig.admit([plain(60)])
    rows = rig.take(room("dying", 1, slots=10_000, count=100))[0]
    rig.release("dying", [given_back(60, 1, "crashed")])
    rig.release("dying", [given_back(n, 1, "blameless") for n in range(60)])
    assert len(rows) == 61
    taken = ids(rig.take(room("w1", 1, slots=32)))
    assert taken == [request_id(n) for n in (0, 1, 60)]
    rig.check()


def test_a_suspect_whose_record_is_gone_stops_nobody(library: HeldLibrary, client: Redis) -> None:
    """Evicted by a Redis that may: the next is served, the audit counts the other out."""
    for number in range(2):
        admit(library, number)
    take(library, "w1", 1)
    for number in range(2):
        row = [request_id(number), 1, "crashed", 0, 0, 0, 0, "", "{}", ""]
        assert library.fcall("release", "w1", 1, *row) == [b"queued"]
    client.delete(library.prefix + f"request:{request_id(0)}")
    assert take(library, "w2", 1, count=1) == [request_id(1)]
    library.now_ms += 1_000
    assert library.fcall("sweep", 0)[3] == 1
    assert client.zcard(library.prefix + "suspects:normal") == 0
    assert client.hget(library.prefix + "clock", "queued") == b"0"


def test_a_request_that_kills_engines_is_convicted_and_its_neighbours_end_well(rig: Rig) -> None:
    """32 in flight, one kills whatever holds it: 31 are done, one is dead, and soon."""
    killer, crashes = request_id(7), 0
    rig.admit([plain(n) for n in range(32)])
    for call in range(1, 60):
        rows = rig.take(room("w1", call, slots=32))[0]
        numbers = [int(row[0][-26:]) for row in rows]
        if killer in [row[0].decode() for row in rows]:
            crashes += 1
            rig.release("w1", [given_back(n, call, "crashed") for n in numbers])
        else:
            rig.finish("w1", [done(n, call) for n in numbers])
    states = [one.state for one in rig.oracle.requests.values()]
    assert (states.count("done"), states.count("dead")) == (31, 1)
    assert rig.oracle.requests[killer].state == "dead"
    assert crashes <= 5
    rig.check()
