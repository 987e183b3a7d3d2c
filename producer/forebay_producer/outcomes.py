"""What a client is told about the way in which its request ended."""

from __future__ import annotations

import json
from typing import Any

from forebay_producer.answers import redis_away_error, spread
from forebay_producer.reader import Left
from forebay_shared.calls import Refusal
from forebay_shared.errors import (
    BY_REASON,
    Cancelled,
    CrashLoop,
    DeadlineExceeded,
    Ended,
    ForebayError,
    Gone,
    IdempotencyMismatch,
    Interrupted,
    InvalidRequest,
    PoolDraining,
    QueueFull,
    Shed,
    TenantLimited,
)
from forebay_shared.records import Result

_BY_STATE: dict[str, type[Ended]] = {
    "cancelled": Cancelled,
    "expired": DeadlineExceeded,
    "shed": Shed,
    "dead": CrashLoop,
}
_MESSAGES: dict[str, str] = {
    "deadline_exceeded": "The deadline passed before the answer came; raise X-Request-Timeout.",
    "crash_loop": "The request was stopped: the engines that ran it crashed.",
    "result_too_large": "The answer is longer than allowed; ask for fewer tokens.",
    "cancelled": "The request was cancelled.",
    "shed": "The queue is full and gave the request's place to a higher class; repeat it later.",
    "stream_interrupted": "The stream broke and cannot be continued exactly; repeat the request.",
    "lost": "The request's entry vanished from the queue; repeat the request.",
}


class EngineFailed(Ended):
    """The engine failed as often as it may; the attempts are used up."""

    status, code = 502, "engine_failed"


def refusal_error(refusal: Refusal, clamp_ms: int) -> ForebayError:
    """Why admit said no."""
    retry_s = spread(refusal.retry_after_ms / 1000, clamp_ms / 1000)
    match refusal.reason:
        case "tenant":
            limit = refusal.limit.removeprefix("tenant:")
            return TenantLimited(f"Your limit of {limit} is reached.", retry_after_s=retry_s)
        case "draining":
            return PoolDraining("This pool takes nothing new.", retry_after_s=retry_s)
        case "conflict":
            return IdempotencyMismatch(
                "This Idempotency-Key was used with another body; use a new key.",
                param="Idempotency-Key",
            )
        case "gone":
            return Gone(f"The result of request {refusal.request_id} has expired.")
        case "class":
            return InvalidRequest("This class does not exist.", param="X-Priority")
        case _:
            return QueueFull(f"The queue is full ({refusal.limit}).", retry_after_s=retry_s)


def left_error(why: Left) -> ForebayError:
    """Why a reader stopped before the end."""
    match why:
        case Left.OVERDUE:
            return DeadlineExceeded(_MESSAGES["deadline_exceeded"])
        case Left.DRAIN:
            return Interrupted(
                "This replica stops; read on at another one, or repeat the request.",
                retry_after_s=spread(1.0),
            )
        case Left.CLIENT:
            return Cancelled(_MESSAGES["cancelled"])
        case Left.VANISHED:
            return redis_away_error("The queue has lost the request; repeat it.")


def ended_error(result: Result) -> ForebayError:
    """The error for a request that ended otherwise than `done`."""
    found = BY_REASON.get(result.reason) or _BY_STATE.get(result.state) or EngineFailed
    message = _MESSAGES.get(found.code or "", "The engine failed.")
    # A repeat may succeed, but not at once.
    retry_s = spread(1.0) if found.should_retry is None else None
    return found(message, retry_after_s=retry_s)


def failed_body(result: Result) -> bytes | None:
    """The engine's own error, where it is one in OpenAI's shape; on one line."""
    if result.status < 400 or not result.body:
        return None
    try:
        value: Any = json.loads(result.body)
    except ValueError:
        return None
    if not (isinstance(value, dict) and value.get("error")):
        return None
    return (
        json.dumps(value, separators=(",", ":")).encode() if b"\n" in result.body else result.body
    )
