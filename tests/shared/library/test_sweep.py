"""sweep: what is due, once a tick; and the audit, which repairs what foreign hands did."""

from __future__ import annotations

from redis import Redis
from tests.shared.library.driver import HeldLibrary, admit, finish, take
from tests.shared.library.rig import Rig, given_back, plain, request_id, room

QUEUE = "queue:normal:ann:0"


def test_one_sweeps_in_a_tick(rig: Rig) -> None:
    """It only notes the time: no holder that dies can stop the others."""
    assert rig.sweep() == [0, 0, 0, 0, 0]
    assert rig.sweep() == []
    rig.pass_time(899)
    assert rig.sweep() == []
    rig.pass_time(1)
    assert rig.sweep() == [0, 0, 0, 0, 0]
    rig.check()


def test_deadlines_end_queued_and_running_requests(rig: Rig) -> None:
    """The worker is told, the estimate is refunded."""
    rig.admit([plain(1, timeout=5_000), plain(2, timeout=5_000), plain(3)])
    rig.take(room("w1", 1, count=1))
    rig.pass_time(4_999)
    rig.sweep()
    rig.pass_time(1_000)
    assert rig.sweep()[0] == 2
    rig.check()
    assert rig.oracle.control["w1"] == [f"cancel {request_id(1)} 1"]


def test_more_than_one_call_may_do_is_told_to_be_repeated(rig: Rig) -> None:
    """3 in a call of each kind: deadlines first, then retries, then lost leases."""
    rig.sweep_for(20)
    rig.admit([plain(n, timeout=20_000) for n in range(50)])
    rig.take(room("w1", 1, count=10))
    rig.release("w1", [given_back(n, 1, "attempt") for n in range(5)])
    rig.admit([plain(100, timeout=90_000)])
    rig.take(room("w1", 2, count=100, free={"normal": 41}))
    rig.sweep_for(19)
    rig.pass_time(1_000)
    assert rig.sweep()[-1] == 1
    while rig.sweep(forced=True)[-1]:
        rig.check()
    rig.check()
    assert rig.oracle.ledger["expired"] == 50


def test_many_of_one_kind_hold_up_no_other(rig: Rig) -> None:
    """Deadlines that pass in masses let leases be taken back in the same call."""
    rig.sweep_for(20)
    rig.admit([plain(n, timeout=21_000) for n in range(4, 40)])
    rig.admit([plain(n, tenant="bob") for n in range(4)])
    rig.sweep_for(6)
    rig.take(room("w1", 1, count=8))
    rig.sweep_for(14)
    rig.pass_time(1_000)
    expired, _, reclaimed, *_ = rig.sweep()
    assert (expired, reclaimed) == (3, 3)
    rig.check()


def test_a_due_retry_is_in_one_place_at_any_time(rig: Rig) -> None:
    """Delayed, then takeable, at its old rank."""
    rig.admit([plain(1), plain(2)])
    rig.take(room("w1", 1, count=1))
    rig.release("w1", [given_back(1, 1, "attempt")])
    rig.check()
    rig.pass_time(1_000)
    assert rig.sweep()[1] == 1
    rig.check()
    rig.show(request_id(1))
    assert [one.id for one in rig.oracle.live() if one.takeable] == [request_id(1), request_id(2)]


def test_a_sweep_rings_classes_that_wait(rig: Rig) -> None:
    """A lost wake-up costs a tick."""
    rig.admit([plain(1)])
    rig.hear_bell("normal")
    rig.sweep()
    assert rig.oracle.bells["normal"] == 1
    rig.check()


def test_a_silent_worker_leaves_the_registry(rig: Rig) -> None:
    """Its slots count no more; its models stay known for a day."""
    rig.register("w1", "serving", 8, 0, (["normal"], ["m"]))
    rig.register("w2", "serving", 4, 0, (["normal"], ["n"]))
    for _ in range(8):
        rig.sweep_for(5)
        rig.register("w2", "serving", 4, 0, (["normal"], ["n"]))
    rig.check()
    assert (list(rig.oracle.registry), rig.oracle.slots) == (["w2"], 4)
    assert sorted(rig.oracle.models) == ["m", "n"]
    rig.pass_time(rig.oracle.settings.known_model_ms - 30_000)
    rig.sweep()
    rig.check()
    assert list(rig.oracle.models) == ["n"]


def test_a_flow_that_left_owes_nothing_for_ever(rig: Rig) -> None:
    """Its tag goes when v has passed it: tags do not grow with the tenants that ever came."""
    rig.admit([plain(n, tenant=f"t{n}", estimate=10) for n in range(50)])
    rig.admit([plain(100, tenant="steady")])
    rows = rig.take(room("w1", 1))[0]
    items = [given_back(int(row[0][-26:]), 1, "blameless") for row in rows[:1]]
    rig.release("w1", items)
    for row in rows[1:]:
        rig.cancel(row[0].decode())
    rig.admit([plain(200, tenant="steady", estimate=1_000)])
    rig.take(room("w1", 2))
    rig.sweep_for(10)
    rig.check()


# What foreign hands did ---------------------------------------------------------------------------


def audit(library: HeldLibrary, seconds: int = 30) -> int:
    """Sweeps each second; how much was repaired."""
    repaired = 0
    for _ in range(seconds):
        library.now_ms += 1_000
        repaired += library.fcall("sweep", 0)[3]
    return repaired


def test_the_audit_reads_all_flows_to_their_ends(library: HeldLibrary, client: Redis) -> None:
    """Many flows, one of them long: junk in each is found, whatever lies before it."""
    for number in range(150):
        admit(library, number, tenant="ann")
    for number in range(150, 195):
        admit(library, number, tenant=f"t{number}")
    queues = client.keys(library.prefix + "queue:*")
    for queue in queues:
        client.xadd(queue, {"junk": "1"}, id="9999-1")
    assert audit(library, 120) == len(queues) == 46
    assert client.hget(library.prefix + "ledger", "undecodable") == b"46"
    assert client.hget(library.prefix + "clock", "queued") == b"195"


def test_a_running_request_without_lease_gets_one_that_has_run_out(
    library: HeldLibrary, client: Redis
) -> None:
    """Its worker renews it or loses it: it is not forgotten."""
    admit(library, 1)
    take(library, "w1", 1)
    client.delete(library.prefix + "leases")
    audit(library)
    assert client.hget(library.prefix + f"request:{request_id(1)}", "state") == b"queued"
    assert take(library, "w2", 1) == [request_id(1)]
    assert finish(library, "w2", 1, request_id(1)) == "ok"


def test_a_record_that_was_evicted_leaves_no_count_behind(
    library: HeldLibrary, client: Redis
) -> None:
    """Its entry becomes a dead letter; depth and counters do not keep a place for it for ever."""
    for number in range(3):
        admit(library, number)
    take(library, "w1", 1, count=1)
    client.delete(library.prefix + f"request:{request_id(0)}")
    client.delete(library.prefix + f"request:{request_id(1)}")
    audit(library)
    take(library, "w1", 2)
    finish(library, "w1", 2, request_id(2))
    clock = client.hgetall(library.prefix + "clock")
    assert client.xlen(library.prefix + "dead") == 2
    assert [clock.get(name, b"0") for name in (b"queued", b"running")] == [b"0", b"0"]
    assert [clock.get(name, b"0") for name in (b"queued:normal", b"running:normal")] == [b"0", b"0"]
    assert not client.exists(library.prefix + QUEUE)
