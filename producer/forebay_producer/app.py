"""The ASGI applications of a producer: the API, and the admin listener's."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from forebay_producer.answers import error_answer
from forebay_producer.guard import ClosingInDrain, error_handlers
from forebay_producer.health import HealthRoutes
from forebay_producer.openai_routes import OpenAIRoutes
from forebay_producer.replica import Replica
from forebay_producer.requests_routes import RequestsRoutes
from forebay_shared.errors import InvalidRequest


def api_app(replica: Replica) -> ASGIApp:
    """The API. Health is there too, metrics only where no admin listener was asked for."""
    health = HealthRoutes(replica)
    routes: list[BaseRoute] = [
        *OpenAIRoutes(replica).routes(),
        *RequestsRoutes(replica).routes(),
        *(health.probes() if replica.options.admin else health.admin()),
    ]
    return ClosingInDrain(_app(replica, routes), lambda: replica.draining)


def admin_app(replica: Replica) -> ASGIApp:
    """Health and metrics alone."""
    return _app(replica, [*HealthRoutes(replica).admin()])


def _app(replica: Replica, routes: list[BaseRoute]) -> FastAPI:
    # Bodies pass through unread, so FastAPI has no schema of them to show.
    app = FastAPI(
        openapi_url=None,
        redirect_slashes=False,
        routes=routes,
        exception_handlers=error_handlers(replica.metrics),
    )
    app.add_exception_handler(RequestValidationError, _invalid)
    return app


async def _invalid(request: Request, error: Exception) -> Response:
    return error_answer(InvalidRequest("The request cannot be read."))
