"""Around every route: errors in OpenAI's shape, an `x-request-id` on each answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from forebay_producer.answers import error_answer, raw_answer, redis_away_error
from forebay_producer.bodies import ClientGone
from forebay_shared import logs
from forebay_shared.connect import redis_away, redis_full
from forebay_shared.errors import ForebayError, InvalidRequest, NotFound, Refused
from forebay_shared.metrics import Metrics

Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]
_GONE = 499


class UnknownUrl(NotFound):
    """No such route."""

    code = "unknown_url"


class WrongMethod(InvalidRequest):
    """The route exists and takes other methods."""

    status, code = 405, "method_not_allowed"


def judged(error: Exception) -> ForebayError:
    """The error to answer with; unexpected ones are logged and told as such."""
    if isinstance(error, ForebayError):
        return error
    if redis_full(error):
        return redis_away_error("The queue's memory is full; come back soon.")
    if redis_away(error):
        return redis_away_error()
    logs.failure("unexpected", error)
    return ForebayError("The server failed; the error has been logged.")


def count_refusal(metrics: Metrics, error: ForebayError) -> None:
    """Count what was turned away, and when it was told to return."""
    metrics.count("forebay_refused_total", reason=error.code or error.type)
    if error.retry_after_s is not None and isinstance(error, Refused):
        metrics.observe("forebay_retry_after_seconds", error.retry_after_s)


def error_handlers(metrics: Metrics) -> dict[int | type[Exception], Handler]:
    """Starlette's exception handlers for all that a route may raise."""

    async def known(request: Request, error: Exception) -> Response:
        told = judged(error)
        count_refusal(metrics, told)
        return error_answer(told)

    async def http(request: Request, error: HTTPException) -> Response:
        return error_answer(_by_status(request, error), error.headers)

    async def gone(request: Request, error: ClientGone) -> Response:
        return raw_answer(b"", _GONE)  # nobody reads it

    return {
        ForebayError: known,
        RedisError: known,
        Exception: known,
        HTTPException: http,
        ClientGone: gone,
    }


def _by_status(request: Request, error: HTTPException) -> ForebayError:
    call = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return UnknownUrl(f"Unknown request URL: {call}.")
    if error.status_code == 405:
        return WrongMethod(f"This URL does not take {request.method}.")
    return InvalidRequest(str(error.detail))


class ClosingInDrain:
    """ASGI: while the replica drains, each answer asks its client to connect anew, elsewhere."""

    def __init__(self, app: Any, is_draining: Callable[[], bool]) -> None:
        self._app = app
        self._is_draining = is_draining

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not self._is_draining():
            await self._app(scope, receive, send)
            return

        async def closing(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, closing)
