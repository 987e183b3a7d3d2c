"""finish: one terminal record, whoever calls how often."""

from __future__ import annotations

from tests.model.hold import Emission
from tests.shared.library.rig import Rig, done, given_back, plain, request_id, room


def test_a_repeat_answers_as_the_first_did(rig: Rig) -> None:
    """And counts nothing twice, however often it comes."""
    rig.admit([plain(1), plain(2)])
    rig.take(room("w1", 1))
    for _ in range(3):
        assert rig.finish("w1", [done(1, 1)]) == [b"ok"]
    rig.check()
    assert (rig.oracle.ledger["done"], rig.oracle.running()) == (1, 1)


def test_a_stale_worker_writes_nothing(rig: Rig) -> None:
    """Its lease was given to another, which ends the request alone."""
    rig.admit([plain(1)])
    rig.take(room("w1", 1))
    rig.release("w1", [given_back(1, 1, "blameless")])
    rig.take(room("w2", 1))
    assert rig.finish("w1", [done(1, 1, body=b"late")]) == [b"lost"]
    assert rig.finish("w2", [done(1, 1)]) == [b"ok"]
    rig.check()


def test_the_same_worker_with_an_older_call_is_stale_too(rig: Rig) -> None:
    rig.admit([plain(1)])
    rig.take(room("w1", 1))
    rig.release("w1", [given_back(1, 1, "blameless")])
    rig.take(room("w1", 2))
    assert rig.finish("w1", [done(1, 1)]) == [b"lost"]
    assert rig.finish("w1", [done(1, 2)]) == [b"ok"]
    rig.check()


def test_a_finish_after_a_cancel_loses(rig: Rig) -> None:
    """And the worker was told to stop."""
    rig.admit([plain(1)])
    rig.take(room("w1", 1))
    rig.cancel(request_id(1))
    assert rig.oracle.control["w1"] == [f"cancel {request_id(1)} 1"]
    assert rig.finish("w1", [done(1, 1)]) == [b"lost"]
    rig.check()


def test_unsent_chunks_and_the_end_mark_come_in_the_same_step(rig: Rig) -> None:
    """A gap writes nothing; then all is there, and the mark names how many there are."""
    rig.admit([plain(1, stream=1)])
    rig.take(room("w1", 1))
    rig.emit("w1", [Emission(request_id(1), 1, 0, (3, 0, 1), ((b"a", b""),))])
    assert rig.finish("w1", [done(1, 1, offset=2, chunks=((b"c", b""),))]) == [b"gap"]
    rig.check()
    assert rig.finish("w1", [done(1, 1, offset=1, chunks=((b"b", b""), (b"c", b"")))]) == [b"ok"]
    rig.check()
    assert (
        rig.oracle.requests[request_id(1)].offset,
        rig.oracle.requests[request_id(1)].end_mark,
    ) == (3, True)


def test_a_result_that_is_too_large_fails_and_says_so_again(rig: Rig) -> None:
    rig.change(result_bytes=5)
    rig.admit([plain(1)])
    rig.take(room("w1", 1))
    for _ in range(2):
        assert rig.finish("w1", [done(1, 1, body=b"123456")]) == [b"large"]
    rig.check()
    assert rig.oracle.requests[request_id(1)].reason == "result_too_large"


def test_an_estimate_is_refunded_at_the_end(rig: Rig) -> None:
    """Also when the tenant has nothing waiting: its next turn comes as early as it used little."""
    rig.admit([plain(1, estimate=1_000, tenant="bob"), plain(2), plain(3)])
    rig.take(room("w1", 1, count=2))
    flows = rig.oracle.class_state("normal").flows
    charged = flows["bob"].f
    rig.finish("w1", [done(1, 1)])
    rig.check()
    assert charged is not None and flows["bob"].f == charged - 2_000.5 + 17


def test_the_last_one_out_leaves_nothing_of_its_flow(rig: Rig) -> None:
    """Queue, group, consumers and indexes go with the last entry, tags with the last request."""
    rig.admit([plain(n) for n in range(3)])
    rig.take(room("w1", 1))
    rig.finish("w1", [done(n, 1) for n in range(3)])
    rig.check()
    kinds = {key.decode().split(":")[2] for key in rig.client.keys(rig.library.prefix + "*")}
    assert kinds == {"layout", "settings", "ledger", "clock", "request", "result", "grant", "usage"}


def test_a_thousand_restarts_leave_no_consumers(rig: Rig) -> None:
    """Each life of a worker has a name of its own; it goes with its last row."""
    rig.admit([plain(0)])
    for n in range(1, 1_001):
        rig.admit([plain(n)])
        row = rig.library.fcall("take", f"life{n}", 1, 1, 1, 1, 1, "normal", 1)[0][0]
        rig.library.fcall("finish", f"life{n}", 1, row[0], 1, "done", "", 1, 0, 1, "{}", "", 0, 0)
        rig.oracle.requests.pop(row[0].decode())
    queue = rig.library.prefix + "queue:normal:ann:0"
    assert rig.client.xinfo_consumers(queue, "workers") == []


def test_finish_and_take_in_one_step(rig: Rig) -> None:
    """As one after the other; repeated, it ends nothing twice and grants nothing new."""
    rig.admit([plain(1), plain(2), plain(3)])
    rig.take(room("w1", 1, count=1))
    for _ in range(2):
        answers, (rows, _) = rig.finish_take([done(1, 1)], room("w1", 2, count=1))
        assert answers == [b"ok"]
        assert [row[0] for row in rows] == [request_id(2).encode()]
        rig.check()
