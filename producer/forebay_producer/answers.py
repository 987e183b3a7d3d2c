"""HTTP answers in OpenAI's shapes, with the headers that its SDKs obey."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from forebay_shared.errors import ForebayError, RedisAway
from forebay_shared.ids import new_ulid

LEAST_RETRY_S = 1.0
MOST_RETRY_S = 60.0
"""Official SDKs obey a Retry-After up to so long (1.x) and ignore longer ones."""
_JITTER = 0.2


def json_answer(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON answer; it has an id of its own where `headers` name none."""
    return raw_answer(json.dumps(value, separators=(",", ":")).encode(), status, headers)


def raw_answer(
    body: bytes,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> Response:
    """An answer of bytes as they are."""
    named = {**(headers or {}), "content-type": content_type}
    if "x-request-id" not in named:
        named["x-request-id"] = new_ulid()
    return Response(body, status, named)


def error_answer(error: ForebayError, headers: Mapping[str, str] | None = None) -> Response:
    """The error in OpenAI's shape, with what tells an SDK whether and when to repeat."""
    named = {**(headers or {}), **retry_headers(error)}
    return json_answer(error.body(), error.status, named)


def retry_headers(error: ForebayError) -> dict[str, str]:
    """`x-should-retry` and Retry-After, as far as the error knows them."""
    named: dict[str, str] = {}
    if error.should_retry is not None:
        named["x-should-retry"] = "true" if error.should_retry else "false"
    if error.retry_after_s is not None:
        # A whole second where no better is understood, milliseconds where it is.
        named["retry-after"] = str(math.ceil(error.retry_after_s))
        named["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1000))
    return named


def spread(retry_after_s: float, most_s: float = MOST_RETRY_S) -> float:
    """A Retry-After of 0–20 % more, so that not all come back at once; 1 to `most_s` seconds."""
    spread_s = retry_after_s * (1 + random.uniform(0, _JITTER))
    return min(max(spread_s, LEAST_RETRY_S), most_s)


def redis_away_error(message: str = "The queue does not answer; come back soon.") -> RedisAway:
    """The refusal while Redis is away, with a Retry-After of 1–5 s."""
    return RedisAway(message, retry_after_s=random.uniform(1, 5))


def error_event(error: ForebayError) -> bytes:
    """The data of the one event that tells a stream's reader what went wrong."""
    return json.dumps(error.body(), separators=(",", ":")).encode()
