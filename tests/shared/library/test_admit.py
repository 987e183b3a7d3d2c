"""admit: stored whole, once or not at all; refused honestly."""

from __future__ import annotations

import pytest
from redis import Redis
from tests.model.dump import untouched
from tests.model.hold import Ending
from tests.shared.library.driver import HeldLibrary, admit
from tests.shared.library.rig import POOL, Rig, done, given_back, plain, request_id, room


def classes(rig: Rig, **depths: int) -> None:
    """Other depths for some classes."""
    changed = [
        one.model_copy(update={"depth": depths.get(one.name, one.depth)})
        for one in rig.oracle.settings.classes
    ]
    rig.change(classes=tuple(changed))


def budget(rig: Rig) -> dict[str, float]:
    """What is left of ann's rates."""
    known = rig.oracle.limits["ann"].items()
    return {name: value for name, value in known if not name.startswith("booked")}


def test_requests_from_before_the_first_worker_are_served(rig: Rig) -> None:
    """The group begins at the first entry, whoever comes first."""
    rig.admit([plain(1), plain(2)])
    rows, _ = rig.take(room("w1", 1))
    assert [row[0] for row in rows] == [request_id(1).encode(), request_id(2).encode()]
    rig.check()


def test_a_repeat_by_id_is_stored_once(rig: Rig) -> None:
    """The same answer, nothing new, also when the request has ended."""
    assert rig.admit([plain(1), plain(1)])[1] == [b"same", request_id(1).encode(), b"queued"]
    rig.take(room("w1", 1))
    rig.finish("w1", [done(1, 1)])
    assert rig.admit([plain(1)]) == [[b"same", request_id(1).encode(), b"done"]]
    rig.check()


def test_an_idempotency_key_gives_the_first_request_again(rig: Rig) -> None:
    """Same key and body: the same request. Another body: a conflict. Other tenant, other key."""
    rig.admit([plain(1, idempotency="k", fingerprint="f")])
    again = rig.admit([plain(2, idempotency="k", fingerprint="f")])
    other = rig.admit([plain(3, idempotency="k", fingerprint="g")])
    assert again == [[b"same", request_id(1).encode(), b"queued"]]
    assert other == [[b"conflict", b"", 0, request_id(1).encode()]]
    assert rig.admit([plain(4, tenant="bob", idempotency="k", fingerprint="g")])[0][0] == b"new"
    rig.check()


def test_an_idempotency_key_outlives_the_result(rig: Rig) -> None:
    """After the result's time the answer is that it is gone; after a day the key is free."""
    rig.admit([plain(1, idempotency="k", fingerprint="f")])
    rig.take(room("w1", 1))
    rig.finish("w1", [done(1, 1)])
    settings = rig.oracle.settings
    for wait in (settings.result_ttl_ms, settings.tombstone_ms):
        rig.pass_time(wait)
        answer = rig.admit([plain(2, idempotency="k", fingerprint="f")])
        assert answer == [[b"gone", b"", 0, request_id(1).encode()]]
    rig.pass_time(settings.idempotency_ttl_ms)
    assert rig.admit([plain(2, idempotency="k", fingerprint="f")])[0][0] == b"new"
    rig.check()


def test_a_request_that_was_not_answered_frees_its_idempotency_key(rig: Rig) -> None:
    """Cancelled: whoever repeats it wants it anew."""
    rig.admit([plain(1, idempotency="k", fingerprint="f")])
    rig.cancel(request_id(1))
    assert rig.admit([plain(2, idempotency="k", fingerprint="f")])[0][0] == b"new"
    rig.check()


@pytest.mark.parametrize(("status", "kept"), [(400, True), (429, True), (500, False), (0, False)])
def test_a_failure_that_a_repeat_may_mend_frees_its_idempotency_key(
    rig: Rig, status: int, kept: bool
) -> None:
    """The engine refused it for good: the same answer for a day. Anything else: tried anew."""
    rig.admit([plain(1, idempotency="k", fingerprint="f")])
    rig.take(room("w1", 1))
    head = {"state": "failed", "status": status}
    rig.finish("w1", [Ending(request_id(1), 1, "failed", "engine", (1, 0, 0), head, b"no")])
    answer = rig.admit([plain(2, idempotency="k", fingerprint="f")])
    assert answer[0][0] == (b"same" if kept else b"new")
    rig.check()


def test_no_more_wait_than_the_depth_whoever_admits(rig: Rig) -> None:
    """Producers share one bound, and what is over it is refused, never trimmed."""
    classes(rig, normal=100)
    for number in range(100):
        rig.admit([plain(number)], inbox=f"r{number % 4}.1")
    refused = rig.admit([plain(100 + number, fingerprint=f"f{number}") for number in range(20)])
    assert {(row[0], row[1]) for row in refused} == {(b"full", b"class:normal")}
    rig.check()
    assert rig.client.xlen(rig.library.prefix + "queue:normal:ann:0") == 100


def test_given_back_requests_are_beyond_the_depth(rig: Rig) -> None:
    """Limits apply to arrivals only."""
    classes(rig, normal=2)
    rig.admit([plain(1), plain(2)])
    rig.take(room("w1", 1))
    rig.admit([plain(3), plain(4)])
    rig.leave("w1")
    rig.check()
    assert rig.oracle.queued() == 2


def test_refusals_use_no_budget(rig: Rig) -> None:
    """After a thousand of them the next request is admitted as if they had not happened."""
    limited = {"per_minute": 2, "tokens_per_minute": 2_000, "most": 1}
    rig.admit([plain(0, **limited)])
    before = budget(rig)
    for number in range(1, 11):
        many = [plain(number * 100 + n, **limited) for n in range(100)]
        assert {row[0] for row in rig.admit(many)} == {b"tenant"}
    assert budget(rig) == before
    rig.take(room("w1", 1))
    assert rig.admit([plain(5_000, **limited)])[0][0] == b"new"
    rig.check()


def test_a_refusal_names_the_time_until_the_bucket_refills(rig: Rig) -> None:
    """Two a minute, one third of the next token there already: 20 s, not 30 s."""
    rig.admit([plain(1, per_minute=2), plain(2, per_minute=2)])
    rig.pass_time(10_000)
    assert rig.admit([plain(3, per_minute=2)]) == [[b"tenant", b"tenant:requests", 20_000, b""]]
    rig.pass_time(20_000)
    assert rig.admit([plain(3, per_minute=2)])[0][0] == b"new"
    rig.check()


def test_those_who_return_as_told_find_the_place_that_was_kept(rig: Rig) -> None:
    """A newcomer finds the kept share closed, the one who was refused before does not."""
    classes(rig, normal=5)
    rig.admit([plain(number) for number in range(5)])
    assert rig.admit([plain(5, fingerprint="f")])[0][0] == b"full"
    rig.take(room("w1", 1, count=1))
    assert rig.admit([plain(6, fingerprint="g")])[0][0] == b"full"
    assert rig.admit([plain(7, fingerprint="f")])[0][0] == b"new"
    rig.check()


def test_a_full_pool_sheds_the_newest_of_the_longest_flow_of_the_lowest_class(rig: Rig) -> None:
    """For a higher class, and never what has been taken once."""
    rig.change(depth=4, kept_share=0)
    items = [("low", "ann"), ("background", "ann"), ("background", "bob"), ("background", "bob")]
    rig.admit([plain(n, name, tenant) for n, (name, tenant) in enumerate(items)])
    assert rig.admit([plain(4, "high")])[0][0] == b"new"
    assert rig.oracle.requests[request_id(3)].state == "shed"
    assert rig.admit([plain(5, "background")])[0][:2] == [b"full", b"pool"]
    rig.check()


def test_victims_may_come_from_several_flows(rig: Rig) -> None:
    """Two places are needed, since one is kept for who was refused: two flows of one give them."""
    rig.change(depth=5, kept_share=0)
    rig.admit([plain(n, "low", tenant) for n, tenant in enumerate("abcde")])
    rig.change(kept_share=0.2)
    rig.admit([plain(5, "low", fingerprint="f")])
    assert rig.admit([plain(6, "high")])[0][0] == b"new"
    assert sum(one.state == "shed" for one in rig.oracle.requests.values()) == 2
    rig.check()


def test_a_place_that_cannot_be_made_costs_nobody(rig: Rig) -> None:
    """Where the lower classes hold too few never-taken requests, none of them ends."""
    rig.change(depth=2, kept_share=0)
    rig.admit([plain(1, "background"), plain(2, "high")])
    rig.take(room("w1", 1))
    rig.admit([plain(3, "high"), plain(4, "high")])
    assert rig.admit([plain(5, "high")])[0][:2] == [b"full", b"pool"]
    rig.check()


def test_what_was_taken_once_is_never_shed(rig: Rig) -> None:
    """Two places are needed, the lower class has one never-taken and one given back: refused."""
    rig.change(depth=5, kept_share=0)
    rig.admit([plain(n, "high") for n in range(3)] + [plain(3, "low"), plain(4, "low")])
    rig.take(room("w1", 1, count=1, free={"low": 1}))
    rig.release("w1", [given_back(3, 1, "blameless")])
    rig.change(kept_share=0.2)
    rig.admit([plain(5, "low", fingerprint="f")])
    assert rig.admit([plain(6, "high")])[0][:2] == [b"full", b"pool"]
    rig.check()


def test_a_draining_pool_refuses_and_still_answers_repeats(rig: Rig) -> None:
    rig.admit([plain(1)])
    rig.switch(None, True)
    answers = rig.admit([plain(1), plain(2)])
    assert [row[0] for row in answers] == [b"same", b"draining"]
    rig.check()


def test_an_unknown_class_is_refused(rig: Rig) -> None:
    assert rig.admit([plain(1, "none")]) == [[b"class", b"none", 0, b""]]
    rig.check()


def test_entry_numbers_jump_past_a_foreign_one(library: HeldLibrary, client: Redis) -> None:
    """A larger id put there by foreign hands: later numbers are larger still, in all flows."""
    admit(library, 1)
    client.xadd(library.prefix + "queue:normal:ann:0", {"junk": "1"}, id="77-3")
    admit(library, 2)
    admit(library, 3, tenant="bob")
    entries = [client.hget(library.prefix + f"request:{request_id(n)}", "entry") for n in (1, 2, 3)]
    assert entries == [b"1", b"78", b"79"]


def test_a_foreign_entry_with_the_largest_id_refuses_and_stores_nothing(
    library: HeldLibrary, client: Redis
) -> None:
    """No number is left in that flow: refused whole; other flows go on."""
    admit(library, 1)
    largest = "18446744073709551615-18446744073709551615"
    client.xadd(library.prefix + "queue:normal:ann:0", {"junk": "1"}, id=largest)
    before = untouched(client, POOL)
    assert admit(library, 2)[0][:2] == [b"full", b"foreign"]
    assert untouched(client, POOL) == before
    assert admit(library, 3, tenant="bob")[0][0] == b"new"


@pytest.mark.parametrize("weight", [0, -1])
def test_a_weight_that_is_not_above_zero_is_a_bad_call(rig: Rig, weight: float) -> None:
    with pytest.raises(Exception, match="BADCALL"):
        rig.admit([plain(1, weight=weight)])
