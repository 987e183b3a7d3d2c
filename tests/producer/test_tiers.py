"""`service_tier` in answers: only where asked for, every other byte as it was."""

from __future__ import annotations

import json

import pytest

from forebay_producer.asked import Asked
from forebay_producer.tiers import served_tier, splice_tier


@pytest.mark.parametrize(
    ("asked", "class_name", "tier"),
    [
        (None, "high", None),
        ("auto", "normal", "default"),
        ("default", "normal", "default"),
        ("priority", "high", "priority"),
        ("scale", "high", "scale"),
        ("priority", "normal", "default"),
        ("flex", "low", "flex"),
        ("auto", "critical", "priority"),
        ("default", "background", "flex"),
    ],
)
def test_the_tier_named_is_the_one_served(asked: str | None, class_name: str, tier: str) -> None:
    assert served_tier(Asked(model="m", service_tier=asked), class_name) == tier


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"a": 1.0}', b'{"a": 1.0,"service_tier":"flex"}'),
        (b'{"a":1}\n', b'{"a":1,"service_tier":"flex"}\n'),
        (b"{ }", b'{ "service_tier":"flex"}'),
        (b'{"service_tier": null,"a":1}', b'{"service_tier":"flex","a":1}'),
        (b'{"service_tier":"default","a":1}', b'{"service_tier":"flex","a":1}'),
    ],
)
def test_the_tier_is_spliced_in(before: bytes, after: bytes) -> None:
    assert splice_tier(before, "flex") == after
    assert splice_tier(before, None) == before


def test_text_that_looks_like_the_field_is_left_alone() -> None:
    text = 'say "service_tier":null or "service_tier" : "x"'
    before = json.dumps({"text": text, "b": [{}]}).encode()
    assert json.loads(splice_tier(before, "flex")) == {
        "text": text,
        "b": [{}],
        "service_tier": "flex",
    }


def test_what_is_no_object_is_left_alone() -> None:
    assert splice_tier(b"plain", "flex") == b"plain"
