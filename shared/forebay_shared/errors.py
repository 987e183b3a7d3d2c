"""Errors that Forebay answers with, as one tree.

ForebayError
├─ InvalidRequest          400   the request cannot be read; `param` names the field
├─ Unauthenticated         401   no key, or an unknown one
├─ PermissionDenied        403   the key may not do this
├─ NotFound                404   no such request, or not this tenant's
│  └─ ModelNotFound        404   no pool has known this model
├─ Gone                    410   the result's time is over
├─ BodyTooLarge            413   longer than the settings allow
├─ IdempotencyMismatch     422   the key was used with another body
├─ Refused                       nothing was stored; come back after `retry_after_s`
│  ├─ TenantLimited        429   a limit of this tenant
│  ├─ QueueFull            503   the class or the pool is full
│  ├─ PoolDraining         503   the pool takes nothing new
│  └─ RedisAway            503   Redis does not answer, is loading or is full
├─ Ended                         the request ended without an answer; `x-should-retry: false`
│  ├─ DeadlineExceeded     504   the deadline passed first
│  ├─ CrashLoop            500   the request killed the engines that ran it
│  ├─ ResultTooLarge       500   result and output are longer than the settings allow
│  ├─ Cancelled            499   cancelled before it ended
│  ├─ Shed                 503   gave its place to a higher class; may be repeated
│  ├─ Interrupted          502   a stream that cannot be continued exactly; may be repeated
│  └─ Lost                 500   its entry vanished from Redis
└─ Unusable                500   the process cannot work against this Redis (not for clients)
   ├─ LayoutMismatch             stored keys have another layout; drain and migrate
   └─ CommandsRefused            the ACL user lacks commands that the library calls
"""

from __future__ import annotations


class ForebayError(Exception):
    """Base of all errors that Forebay answers with, in OpenAI's shape."""

    status = 500
    type = "server_error"
    code: str | None = None
    should_retry: bool | None = None  # None: leave it to the SDK's own rule by status

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, dict[str, str | None]]:
        """The JSON body in OpenAI's shape."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class InvalidRequest(ForebayError):
    """The request cannot be read; mend the named field."""

    status, type = 400, "invalid_request_error"


class Unauthenticated(ForebayError):
    """No key or an unknown one; send `Authorization: Bearer …`."""

    status, type, code = 401, "authentication_error", "invalid_api_key"


class PermissionDenied(ForebayError):
    """The key may not do this; ask the operator."""

    status, type = 403, "permission_error"


class NotFound(ForebayError):
    """No such request, or it belongs to another tenant."""

    status, type, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(NotFound):
    """No pool has known this model; see `GET /v1/models`."""

    code = "model_not_found"


class Gone(ForebayError):
    """The result's time is over; submit the request again."""

    status, type, code = 410, "invalid_request_error", "result_expired"


class BodyTooLarge(ForebayError):
    """The body is longer than the settings allow; send less."""

    status, type, code = 413, "invalid_request_error", "body_too_large"


class IdempotencyMismatch(ForebayError):
    """The Idempotency-Key was used with another body; use a new key."""

    status, type, code = 422, "invalid_request_error", "idempotency_mismatch"


class Refused(ForebayError):
    """Nothing was stored; come back after `retry_after_s`."""

    status = 503


class TenantLimited(Refused):
    """A limit of this tenant is reached; come back after `retry_after_s`."""

    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"


class QueueFull(Refused):
    """The class or the pool is full; come back after `retry_after_s`."""

    code = "queue_full"


class PoolDraining(Refused):
    """The pool takes nothing new; try another, or come back."""

    code = "draining"


class RedisAway(Refused):
    """Redis does not answer, is loading or is full; come back after `retry_after_s`."""

    code = "redis_unavailable"


class Ended(ForebayError):
    """The request ended without an answer; a repeat by the SDK would not help."""

    should_retry: bool | None = False


class DeadlineExceeded(Ended):
    """The deadline passed first; raise `X-Request-Timeout` or the class."""

    status, type, code = 504, "timeout_error", "deadline_exceeded"


class CrashLoop(Ended):
    """The request killed the engines that ran it; an operator finds it in the dead letters."""

    code = "crash_loop"


class ResultTooLarge(Ended):
    """Result and output are longer than the settings allow; ask for fewer tokens."""

    code = "result_too_large"


class Cancelled(Ended):
    """The request was cancelled before it ended."""

    status, code = 499, "cancelled"


class Shed(Ended):
    """The request gave its place to a higher class; repeat it later."""

    status, code, should_retry = 503, "shed", None


class Interrupted(Ended):
    """The stream broke where it cannot be continued exactly; repeat it."""

    status, code, should_retry = 502, "stream_interrupted", None


class Lost(Ended):
    """The request's entry vanished from Redis; repeat it."""

    code, should_retry = "lost", None


class Unusable(ForebayError):
    """The process cannot work against this Redis."""


class LayoutMismatch(Unusable):
    """Stored keys have another layout; drain the pool and start it anew."""


class CommandsRefused(Unusable):
    """The ACL user lacks commands that the library calls; see `forebay doctor --acl`."""


BY_REASON: dict[str, type[Ended]] = {
    "deadline": DeadlineExceeded,
    "crash_loop": CrashLoop,
    "result_too_large": ResultTooLarge,
    "cancelled": Cancelled,
    "shed": Shed,
    "interrupted": Interrupted,
    "lost": Lost,
    "undecodable": Lost,
}
"""Reasons that the library or a worker writes into a terminal record, and what a client sees."""
