"""Headers that SDKs obey, and the errors behind every way a request can end."""

from __future__ import annotations

import pytest

from forebay_producer.answers import error_answer, redis_away_error, spread
from forebay_producer.outcomes import ended_error, failed_body, left_error, refusal_error
from forebay_producer.reader import Left
from forebay_shared.calls import Refusal
from forebay_shared.errors import BY_REASON, CrashLoop, ForebayError, QueueFull
from forebay_shared.records import Result


def test_a_retry_after_is_spread_upwards_and_clamped() -> None:
    spreads = [spread(10) for _ in range(200)]
    assert min(spreads) >= 10
    assert max(spreads) <= 12
    assert max(spreads) - min(spreads) > 1
    assert spread(0) == 1
    assert spread(59) <= 60
    assert spread(1000) == 60
    assert spread(1000, 30) == 30


def test_both_retry_headers_say_the_same() -> None:
    headers = error_answer(QueueFull("full", retry_after_s=1.2345)).headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1235")
    assert "x-should-retry" not in headers


def test_without_redis_clients_return_within_1_to_5_s() -> None:
    waits = [redis_away_error().retry_after_s or 0 for _ in range(100)]
    assert min(waits) >= 1
    assert max(waits) <= 5


def test_what_a_repeat_does_not_mend_says_so() -> None:
    assert error_answer(CrashLoop("x")).headers["x-should-retry"] == "false"


@pytest.mark.parametrize("reason", sorted(BY_REASON))
def test_every_reason_has_words_for_the_client(reason: str) -> None:
    error = ended_error(Result("dead", reason=reason))
    assert type(error) is BY_REASON[reason]
    assert error.message.endswith(".")
    assert "engine failed" not in error.message
    assert (error.retry_after_s is None) == (error.should_retry is False)


@pytest.mark.parametrize(
    ("state", "status"), [("cancelled", 499), ("expired", 504), ("shed", 503), ("dead", 500)]
)
def test_a_state_without_reason_is_understood(state: str, status: int) -> None:
    assert ended_error(Result(state)).status == status


@pytest.mark.parametrize("why", list(Left))
def test_every_reason_to_leave_is_an_error(why: Left) -> None:
    assert isinstance(left_error(why), ForebayError)


@pytest.mark.parametrize(
    ("reason", "limit", "status"),
    [
        ("full", "class:high", 503),
        ("full", "pool", 503),
        ("tenant", "tenant:depth", 429),
        ("draining", "", 503),
        ("conflict", "", 422),
        ("gone", "", 410),
        ("class", "", 400),
    ],
)
def test_every_refusal_has_its_status(reason: str, limit: str, status: int) -> None:
    error = refusal_error(Refusal(reason, limit, 2_000, "p.x"), 60_000)
    assert error.status == status
    assert (error.retry_after_s is not None) == (status in (429, 503))


def test_only_errors_in_openais_shape_pass_into_streams() -> None:
    good = b'{"error":{"message":"x"}}'
    assert failed_body(Result("failed", 500, body=good)) == good
    assert failed_body(Result("failed", 500, body=b'{\n"error": {"message": "x"}}')) == (
        b'{"error":{"message":"x"}}'
    )
    for body in (b"", b"<html>", b"[]", b'{"detail":"x"}', b'{"error":null}'):
        assert failed_body(Result("failed", 500, body=body)) is None
