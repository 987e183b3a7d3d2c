"""Around every route: errors in OpenAI's shape, an `x-request-id` on each answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from forebay_producer.answers import error_answer, raw_answer, redis_away_error
from forebay_producer.bodies import ClientGone, UploadTimeout
from forebay_shared import logs
from forebay_shared.connect import Unconfirmed, redis_away, redis_full
from forebay_shared.errors import ForebayError, InvalidRequest, NotFound, Refused
from forebay_shared.metrics import Metrics

Endpoint = Callable[[Request], Awaitable[Response]]
Row = tuple[str, str, Endpoint]
"""Method, path and endpoint of a route."""
_GONE = 499
_CLOSE = {"connection": "close"}  # what still comes would be taken for the next request


class UnknownUrl(NotFound):
    """No such route."""

    code = "unknown_url"


class WrongMethod(InvalidRequest):
    """The route exists and takes other methods."""

    status, code = 405, "method_not_allowed"


def header_map(request: Request) -> Mapping[str, str]:
    """The headers by lower-case name; of repeated ones the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.raw}


def judged(error: Exception) -> ForebayError:
    """The error to answer with; unexpected ones are logged and told as such."""
    if isinstance(error, ForebayError):
        return error
    if redis_full(error):
        return redis_away_error("The queue's memory is full; come back soon.")
    if isinstance(error, Unconfirmed):
        return redis_away_error("The queue could not copy the request in time; repeat it soon.")
    if redis_away(error):
        return redis_away_error()
    logs.failure("unexpected", error)
    return ForebayError("The server failed; the error has been logged.")


def count_refusal(metrics: Metrics, error: ForebayError) -> None:
    """Count what was turned away, and when it was told to return."""
    metrics.count("forebay_refused_total", reason=error.code or error.type)
    if error.retry_after_s is not None and isinstance(error, Refused):
        metrics.observe("forebay_retry_after_seconds", error.retry_after_s)


def guarded(endpoint: Endpoint, metrics: Metrics) -> Endpoint:
    """The endpoint with its errors turned into answers."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientGone:
            return raw_answer(b"", _GONE)  # nobody reads it
        except Exception as error:  # noqa: BLE001 - judged: what is unexpected is logged
            told = judged(error)
            count_refusal(metrics, told)
            return error_answer(told, _CLOSE if isinstance(told, UploadTimeout) else None)

    return answer


async def no_route(request: Request, error: HTTPException) -> Response:
    """Starlette's answer where no route fits, in OpenAI's shape."""
    return error_answer(_by_status(request, error), error.headers)


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
