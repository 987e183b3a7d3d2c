"""emit: chunks once, in order, and only from who holds the request."""

from __future__ import annotations

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from tests.model.dump import untouched
from tests.model.hold import Emission
from tests.shared.library.driver import HeldLibrary, admit, take
from tests.shared.library.rig import POOL, Rig, done, given_back, plain, request_id, room


def chunks(*texts: str) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((text.encode(), b"") for text in texts)


def streaming(rig: Rig, *numbers: int) -> None:
    """Streamed requests that w1 runs by its call 1, watched by r1.1."""
    rig.open_inbox("r1.1")
    rig.admit([plain(n, stream=1) for n in numbers], inbox="r1.1")
    rig.take(room("w1", 1))


def test_a_repeated_call_appends_nothing_twice(rig: Rig) -> None:
    """Also when it overlaps with what came."""
    streaming(rig, 1)
    for _ in range(2):
        rig.emit("w1", [Emission(request_id(1), 1, 0, (3, 0, 2), chunks("a", "b"))])
    rig.emit("w1", [Emission(request_id(1), 1, 1, (3, 0, 3), chunks("b", "c"))])
    rig.check()
    assert [event for event, _ in rig.oracle.requests[request_id(1)].chunks] == [b"a", b"b", b"c"]


def test_a_gap_writes_nothing(rig: Rig) -> None:
    """Chunks before it are missing: the worker sends them first."""
    streaming(rig, 1)
    assert rig.emit("w1", [Emission(request_id(1), 1, 1, (3, 0, 2), chunks("b"))]) == [b"gap"]
    rig.check()


def test_output_that_grows_too_long_writes_nothing(rig: Rig) -> None:
    rig.change(result_bytes=3)
    streaming(rig, 1)
    rig.emit("w1", [Emission(request_id(1), 1, 0, (3, 0, 2), chunks("ab"))])
    assert rig.emit("w1", [Emission(request_id(1), 1, 1, (3, 0, 9), chunks("cd"))]) == [b"large"]
    rig.check()


def test_each_item_is_answered_by_itself(rig: Rig) -> None:
    """One lost lease costs the others nothing."""
    streaming(rig, 1, 2)
    rig.release("w1", [given_back(1, 1, "blameless")])
    items = [Emission(request_id(n), 1, 0, (3, 0, 2), chunks("a")) for n in (1, 2)]
    assert rig.emit("w1", items) == [b"lost", b"ok"]
    rig.check()


def test_the_next_worker_continues_at_the_offset(rig: Rig) -> None:
    """What came before a crash stays, and the first one's late chunks are refused."""
    streaming(rig, 1)
    rig.emit("w1", [Emission(request_id(1), 1, 0, (3, 0, 2), chunks("a", "b"))])
    rig.release("w1", [given_back(1, 1, "crashed")])
    rows = rig.take(room("w2", 1))[0]
    assert rows[0][7] == 2
    late = [Emission(request_id(1), 1, 2, (3, 0, 3), chunks("x"))]
    assert rig.emit("w1", late) == [b"lost"]
    rig.emit("w2", [Emission(request_id(1), 1, 2, (3, 0, 3), chunks("c"))])
    rig.finish("w2", [done(1, 1, offset=3)])
    rig.check()
    assert [event for event, _ in rig.oracle.requests[request_id(1)].chunks] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("offset", ["0.5", "-1", "x"])
def test_an_offset_must_be_whole(library: HeldLibrary, client: Redis, offset: str) -> None:
    """A bad one among good ones: nothing of the call is written."""
    admit(library, 1)
    admit(library, 2)
    take(library, "w1", 1)
    library.fcall("emit", "w1", 1, request_id(1), 1, 0, 1, 0, 2, 1, "a", "")
    before = untouched(client, POOL)
    good = [request_id(2), 1, 0, 1, 0, 2, 1, "a", ""]
    bad = [request_id(1), 1, offset, 1, 0, 2, 2, "b", "", "c", ""]
    with pytest.raises(ResponseError, match="BADCALL"):
        library.fcall("emit", "w1", 2, *good, *bad)
    assert untouched(client, POOL) == before
