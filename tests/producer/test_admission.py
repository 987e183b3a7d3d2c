"""From a call to an admission: class, deadline, what makes a repeat recognisable."""

from __future__ import annotations

import json

import pytest

from forebay_producer.admission import Call, make_admission
from forebay_producer.asked import read_asked
from forebay_producer.keysfile import EVERYBODY, Caller
from forebay_shared.calls import Admission, Limits
from forebay_shared.calls.requests import UNKNOWN
from forebay_shared.errors import InvalidRequest
from forebay_shared.ids import pool_of
from forebay_shared.settings import ClassSettings, PoolSettings

PATH = "/v1/chat/completions"
SETTINGS = PoolSettings()


def call(headers: dict[str, str] | None = None, caller: Caller = EVERYBODY, **body: object) -> Call:
    raw = json.dumps({"model": "m", **body}).encode()
    return Call(PATH, headers or {}, raw, read_asked(PATH, raw), caller)


def admission(
    headers: dict[str, str] | None = None, caller: Caller = EVERYBODY, **body: object
) -> Admission:
    return make_admission(call(headers, caller, **body), "chat", SETTINGS)


def caller_up_to(highest: str) -> Caller:
    return Caller(sha256="a" * 64, tenant="acme", highest_class=highest)


@pytest.mark.parametrize(
    ("tier", "served"),
    [
        ("priority", "high"),
        ("fast", "high"),
        ("scale", "high"),
        ("default", "normal"),
        ("auto", "normal"),
        ("flex", "low"),
        (None, "normal"),
    ],
)
def test_a_service_tier_asks_for_a_class(tier: str | None, served: str) -> None:
    assert admission(service_tier=tier).class_name == served


def test_x_priority_names_any_class_and_goes_before_the_tier() -> None:
    assert admission({"x-priority": "background"}).class_name == "background"
    assert admission({"x-priority": "Low "}, service_tier="priority").class_name == "low"


def test_no_class_above_the_highest_of_the_key() -> None:
    assert admission({"x-priority": "critical"}).class_name == "high"
    assert admission({"x-priority": "critical"}, caller_up_to("critical")).class_name == "critical"
    assert admission({"x-priority": "high"}, caller_up_to("low")).class_name == "low"
    assert admission({}, caller_up_to("low")).class_name == "low"
    assert admission({"x-priority": "background"}, caller_up_to("low")).class_name == "background"


@pytest.mark.parametrize(
    ("headers", "body", "param"),
    [
        ({"x-priority": "urgent"}, {}, "X-Priority"),
        ({}, {"service_tier": "gold"}, "service_tier"),
        ({"x-request-timeout": "soon"}, {}, "X-Request-Timeout"),
        ({"x-request-timeout": "0"}, {}, "X-Request-Timeout"),
        ({"x-request-timeout": "-5"}, {}, "X-Request-Timeout"),
        ({"x-request-timeout": "inf"}, {}, "X-Request-Timeout"),
        ({"x-request-timeout": "99999999"}, {}, "X-Request-Timeout"),
        ({"idempotency-key": "k" * 256}, {}, "Idempotency-Key"),
    ],
)
def test_bad_headers_are_named(headers: dict[str, str], body: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        admission(headers, **body)
    assert caught.value.param == param


def test_a_pool_without_the_usual_classes_serves_its_own() -> None:
    own = PoolSettings(classes=(ClassSettings(name="gold"), ClassSettings(name="silver")))
    assert make_admission(call(), "chat", own).class_name == "silver"
    assert make_admission(call(service_tier="priority"), "chat", own).class_name == "silver"
    gold = call({"x-priority": "gold"}, caller_up_to("gold"))
    assert make_admission(gold, "chat", own).class_name == "gold"


def test_the_deadline_is_named_or_the_clients_patience_or_the_pools() -> None:
    assert admission().timeout_ms == SETTINGS.sync_deadline_ms
    assert admission({"prefer": "respond-async"}).timeout_ms == SETTINGS.async_deadline_ms
    assert admission({"x-request-timeout": "1.5"}).timeout_ms == 1500
    patience = {"x-stainless-read-timeout": "30.0"}
    assert admission(patience).timeout_ms == 30_000
    assert admission(patience, stream=True).timeout_ms == SETTINGS.sync_deadline_ms
    assert admission({**patience, "x-request-timeout": "5"}).timeout_ms == 5_000
    both = {**patience, "x-request-timeout": "5"}
    assert admission(both, stream=True).timeout_ms == 5_000
    assert admission({**patience, "prefer": "respond-async"}).timeout_ms == 86_400_000
    assert admission({"x-stainless-read-timeout": "NOT_GIVEN"}).timeout_ms == 600_000


@pytest.mark.parametrize(
    "prefer", ["respond-async", "Respond-Async", "wait=5, respond-async", "respond-async; x=1"]
)
def test_prefer_is_read_as_a_list(prefer: str) -> None:
    assert call({"prefer": prefer}).asynchronous
    assert not call({"prefer": "return=minimal"}).asynchronous


def test_the_idempotency_key_is_kept_as_a_hash() -> None:
    first, again = (admission({"idempotency-key": "k1"}) for _ in range(2))
    assert first.idempotency == again.idempotency != ""
    assert "k1" not in first.idempotency
    assert admission({"idempotency-key": "k2"}).idempotency != first.idempotency
    assert admission().idempotency == ""


def test_the_fingerprint_tells_tenants_and_bodies_apart() -> None:
    one = admission(messages="a")
    assert one.fingerprint == admission(messages="a").fingerprint
    assert one.fingerprint != admission(messages="b").fingerprint
    assert one.fingerprint != admission({}, caller_up_to("high"), messages="a").fingerprint


def test_the_body_and_trace_context_travel_as_received() -> None:
    headers = {"traceparent": "00-a-b-01", "tracestate": "x=y", "authorization": "Bearer secret"}
    envelope = admission(headers, unknown={"a": 1.0}, stream=True).envelope
    assert json.loads(envelope.body)["unknown"] == {"a": 1.0}
    assert envelope.stream
    assert envelope.headers == {
        "traceparent": "00-a-b-01",
        "tracestate": "x=y",
        "x-vllm-priority": "2",
    }


def test_a_tier_that_vllm_refuses_goes_on_as_the_one_it_means() -> None:
    text = '{"service_tier":"fast"}'
    envelope = admission(service_tier="fast", messages=text).envelope
    assert json.loads(envelope.body) == {
        "model": "m",
        "service_tier": "priority",
        "messages": text,
    }
    assert json.loads(admission(service_tier="flex").envelope.body)["service_tier"] == "flex"


def test_progress_is_kept_only_where_asked_for() -> None:
    assert admission({"x-resume": "true"}).envelope.progress
    assert not admission({"x-resume": "no"}).envelope.progress


def test_who_calls_decides_tenant_weight_and_limits() -> None:
    caller = Caller(sha256="a" * 64, tenant="acme", weight=3, limits={"depth": 7})
    one = admission({}, caller)
    assert (one.tenant, one.weight, one.limits) == ("acme", 3, Limits(depth=7))
    assert pool_of(one.request_id) == "chat"


def test_a_key_expects_learned_lengths_or_the_longest() -> None:
    """With `max_tokens` an answer is charged as the longest that it may be, where it says one."""
    longest = Caller(sha256="a" * 64, tenant="acme", estimate="max_tokens")
    expected = [
        admission({}, who, **body).output_estimate
        for who in (EVERYBODY, longest)
        for body in ({"max_tokens": 70, "n": 2}, {})
    ]
    assert expected == [UNKNOWN, UNKNOWN, 140, UNKNOWN]
