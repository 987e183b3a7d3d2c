"""The ASGI applications of a producer: the API, and the admin listener's."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from forebay_producer.guard import ClosingInDrain, Row, guarded, no_route
from forebay_producer.health import HealthRoutes
from forebay_producer.listen import metrics_need_key
from forebay_producer.openai_routes import OpenAIRoutes
from forebay_producer.replica import Replica
from forebay_producer.requests_routes import RequestsRoutes


def api_app(replica: Replica) -> ASGIApp:
    """The API. Health is there too, metrics only where no admin listener was asked for.

    Where strangers reach this address, they need a key for metrics as for everything else.
    """
    health = HealthRoutes(replica, keyed=metrics_need_key(replica.options))
    rows = OpenAIRoutes(replica).rows() + RequestsRoutes(replica).rows()
    rows += health.probes() if replica.options.admin else health.admin()
    return ClosingInDrain(_app(replica, rows), lambda: replica.draining)


def admin_app(replica: Replica) -> ASGIApp:
    """Health and metrics alone."""
    return _app(replica, HealthRoutes(replica).admin())


def _app(replica: Replica, rows: list[Row]) -> FastAPI:
    # Bodies pass through as received, so FastAPI has no schema of them to check or to show.
    return FastAPI(
        openapi_url=None,
        redirect_slashes=False,
        routes=[
            Route(path, guarded(endpoint, replica.metrics), methods=[method])
            for method, path, endpoint in rows
        ],
        exception_handlers={HTTPException: no_route},
    )
