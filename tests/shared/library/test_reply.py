"""reply and show: one moment, and everything after it is told."""

from __future__ import annotations

from tests.model.hold import Emission
from tests.shared.library.rig import Rig, done, given_back, plain, request_id, room


def test_whoever_asks_hears_of_everything_after(rig: Rig) -> None:
    """Through the inbox that it named, from then on."""
    rig.open_inbox("r2.1")
    rig.admit([plain(1)], inbox="r1.1")
    rig.reply("r2.1", [(request_id(1), -1)])
    rig.take(room("w1", 1))
    rig.finish("w1", [done(1, 1)])
    rig.check()
    assert rig.oracle.inboxes == {"r2.1": [request_id(1)]}
    assert rig.client.exists(rig.library.prefix + "inbox:r1.1") == 0


def test_four_watch_and_the_oldest_goes(rig: Rig) -> None:
    rig.admit([plain(1)], inbox="r0.1")
    for number in (1, 2, 3, 4, 2):
        rig.reply(f"r{number}.1", [(request_id(1), -1)])
    rig.check()
    assert rig.oracle.requests[request_id(1)].watchers == ["r1.1", "r2.1", "r3.1", "r4.1"]


def test_chunks_come_after_the_offset_and_end_with_the_mark(rig: Rig) -> None:
    """A result may be there before the reader has all chunks; only the mark ends them."""
    rig.admit([plain(1, stream=1)])
    rig.take(room("w1", 1))
    rig.emit("w1", [Emission(request_id(1), 1, 0, (1, 0, 1), ((b"a", b"r"), (b"b", b"")))])
    rig.reply("", [(request_id(1), 1)])
    rig.finish("w1", [done(1, 1, offset=2, chunks=((b"c", b""),), body=b"")])
    for offset in (-1, 0, 1, 3, 9):
        rig.reply("", [(request_id(1), offset)])
    rig.check()


def test_a_reader_of_a_request_without_chunks_comes_to_an_end(rig: Rig) -> None:
    rig.admit([plain(1)])
    rig.cancel(request_id(1))
    row = rig.library.fcall("reply", "", 1, request_id(1), 0)[0]
    assert row[5] == 1


def test_a_reply_is_bounded_and_says_what_is_missing(rig: Rig) -> None:
    """About 1 MiB of chunks a call over all items; asked again from there, all come."""
    rig.admit([plain(n, stream=1) for n in (1, 2)])
    rig.take(room("w1", 1))
    events = [bytes([65 + n]) * 300_000 for n in range(6)]
    for number in (1, 2):
        emitted = tuple((event, b"") for event in events)
        rig.emit("w1", [Emission(request_id(number), 1, 0, (1, 0, 1), emitted)])
    rig.finish("w1", [done(1, 1, offset=6)])
    rows = rig.library.fcall("reply", "", 2, request_id(1), 0, request_id(2), 0)
    assert [len(row[4]) // 2 for row in rows] == [4, 0]
    assert [row[5] for row in rows] == [0, 0]
    row = rig.library.fcall("reply", "", 1, request_id(1), 4)[0]
    assert (row[4][1::2], row[5]) == (events[4:], 1)


def test_what_nobody_knows_is_answered_as_such(rig: Rig) -> None:
    """A waiter whose record vanished must not wait on."""
    rig.reply("r1.1", [(request_id(1), 0)])
    rig.show(request_id(1))
    rig.check()


def test_a_result_lives_from_the_end_and_the_record_longer(rig: Rig) -> None:
    """However long it waited before."""
    rig.admit([plain(1, timeout=90_000_000)])
    rig.pass_time(7_200_000)
    rig.take(room("w1", 1))
    rig.finish("w1", [done(1, 1)])
    prefix, limits = rig.library.prefix, rig.oracle.settings
    result = rig.client.pttl(prefix + f"result:{request_id(1)}")
    record = rig.client.pttl(prefix + f"request:{request_id(1)}")
    assert 0 <= limits.result_ttl_ms - result < 5_000
    assert 0 <= limits.result_ttl_ms + limits.tombstone_ms - record < 5_000
    rig.pass_time(limits.result_ttl_ms)
    rig.reply("", [(request_id(1), -1)])
    rig.check()


def test_a_waiting_request_says_why(rig: Rig) -> None:
    """Rank by arrival, and the reason: no worker, no slot, paused, a retry, a suspect."""
    rig.admit([plain(n) for n in range(3)])
    rig.show(request_id(2))
    rig.register("w1", "serving", 4, 0, (["normal"], ["m"]))
    rig.show(request_id(2))
    rig.take(room("w1", 1, count=2))
    rig.release("w1", [given_back(0, 1, "attempt"), given_back(1, 1, "crashed")])
    for number in range(3):
        rig.show(request_id(number))
    rig.switch(True, None)
    rig.show(request_id(2))
    answers = [rig.library.fcall("show", request_id(n), "")[6:8] for n in range(3)]
    assert answers == [[-1, b"retry"], [-1, b"paused"], [0, b"paused"]]
    rig.check()
