"""`/v1/requests/{id}`: state and result of a request, its events, and how to cancel it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from forebay_producer.answers import json_answer, raw_answer
from forebay_producer.exchange import hang_up
from forebay_producer.follow import FollowStream
from forebay_producer.guard import Row, header_map
from forebay_producer.outcomes import ended_error
from forebay_producer.pool import Pool
from forebay_producer.replica import Replica
from forebay_shared.assemble import assemble
from forebay_shared.calls import Shown
from forebay_shared.calls.requests import UNKNOWN
from forebay_shared.errors import ForebayError, Gone, InvalidRequest, NotFound
from forebay_shared.ids import born_ms
from forebay_shared.records import TERMINAL, Result

_PATH = "/v1/requests/{request_id}"


class RequestsRoutes:
    """Endpoints about one request; a tenant sees its own alone."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def rows(self) -> list[Row]:
        return [
            ("GET", _PATH, self.show),
            ("DELETE", _PATH, self.cancel),
            ("GET", _PATH + "/events", self.events),
        ]

    async def show(self, request: Request) -> Response:
        """State, place and result; `?wait=S` waits up to S seconds for the end."""
        wait_s = self._wait_s(request)
        pool, shown = await self._find(request)
        if wait_s > 0 and shown.state not in TERMINAL:
            await self._wait(pool, shown.request_id, wait_s, request)
            pool, shown = await self._find(request)
        headers = {"x-request-id": shown.request_id, "x-forebay-class": shown.class_name}
        return raw_answer(await shown_body(pool, shown), 200, headers)

    async def cancel(self, request: Request) -> Response:
        """End the request as cancelled; one that has ended keeps its state."""
        pool, request_id, tenant = await self._named(request)
        state = await pool.intake.cancel(request_id, tenant)
        if not state:
            raise missing(request_id, pool)
        value = {"id": request_id, "object": "request", "state": state}
        return json_answer(value, 200, {"x-request-id": request_id})

    async def events(self, request: Request) -> Response:
        """The request's chunks from after `Last-Event-ID` on, then one event `end`."""
        have = _last_event_id(request)
        pool, shown = await self._find(request)
        if shown.state in TERMINAL and not shown.result:
            raise expired(shown.request_id)
        if have > shown.offset and shown.stream:
            # Redis has lost them (a failover): what comes in their place may be another text.
            raise Gone(f"The stream has {shown.offset} events, fewer than Last-Event-ID names.")
        have = have if shown.stream else UNKNOWN
        reader = pool.inbox.open(shown.request_id, have)
        return FollowStream(pool, reader, self._replica.timings.comment_every_s)

    async def _named(self, request: Request) -> tuple[Pool, str, str]:
        caller = self._replica.callers.identify(header_map(request))
        request_id = request.path_params["request_id"]
        pool = await self._replica.pool_of(request_id)
        if pool is None:
            raise NotFound(f"There is no request `{request_id[:100]}`.")
        return pool, request_id, caller.tenant

    async def _find(self, request: Request) -> tuple[Pool, Shown]:
        pool, request_id, tenant = await self._named(request)
        shown = await pool.intake.show(request_id, tenant)
        if shown is None:
            raise missing(request_id, pool)
        return pool, shown

    def _wait_s(self, request: Request) -> float:
        named = request.query_params.get("wait", "0")
        if not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", named):
            raise InvalidRequest("wait must be a number of seconds.", param="wait")
        return min(float(named), self._replica.timings.wait_limit_s)

    async def _wait(self, pool: Pool, request_id: str, wait_s: float, request: Request) -> None:
        reader = pool.inbox.open(request_id)
        watch = asyncio.create_task(hang_up(request.receive, reader))
        try:
            pool.inbox.arm(reader)
            pool.inbox.ask(reader)  # adds this replica to those that are told
            await reader.news(wait_s)
        finally:
            watch.cancel()
            pool.close_reader(reader)


def expired(request_id: str) -> Gone:
    """The request was there, its result is not any more."""
    return Gone(f"The result of request {request_id} has expired.")


def missing(request_id: str, pool: Pool) -> ForebayError:
    """Gone where the id is older than a result lives, else NotFound."""
    born = born_ms(request_id)
    age_ms = time.time() * 1000 - (born or 0)
    if born is not None and age_ms > pool.settings.result_ttl_ms:
        return expired(request_id)
    return NotFound(f"There is no request {request_id}.")


def _last_event_id(request: Request) -> int:
    named = request.headers.get("last-event-id", "").strip() or "0"
    if not re.fullmatch(r"\d{1,15}", named):
        raise InvalidRequest(
            "Last-Event-ID must be the id of an event of this stream.", param="Last-Event-ID"
        )
    return int(named)


async def shown_body(pool: Pool, shown: Shown) -> bytes:
    """The request as JSON. The engine's answer stands in it as the engine wrote it."""
    head = json.dumps(_fields(shown), separators=(",", ":")).encode()
    if shown.state not in TERMINAL:
        return head[:-1] + b',"result":null}'
    if not shown.result:
        raise expired(shown.request_id)
    result = await _result(pool, shown, Result.decode(shown.result))
    return head[:-1] + b',"result":' + result + b"}"


def _fields(shown: Shown) -> dict[str, Any]:
    waits = shown.rank != UNKNOWN
    return {
        "id": shown.request_id,
        "object": "request",
        "state": shown.state,
        "class": shown.class_name,
        "model": shown.model,
        "stream": shown.stream,
        "rank": shown.rank if waits else None,
        "waits_for": shown.waits_for or None,
        "takes": shown.takes,
        "attempts": shown.attempts,
        "crashes": shown.crashes,
        "chunks": shown.offset,
        "admitted_at": _seconds(shown.admitted_ms),
        "started_at": _seconds(shown.taken_ms),
        "ended_at": _seconds(shown.ended_ms),
        "deadline_at": _seconds(shown.deadline_ms),
        "now": _seconds(shown.now_ms),
    }


def _seconds(stamp_ms: int) -> float | None:
    return stamp_ms / 1000 if stamp_ms > 0 else None


async def _result(pool: Pool, shown: Shown, result: Result) -> bytes:
    answered = result.state == "done" or (result.status >= 400 and bool(result.body))
    if not answered:
        error = ended_error(result)
        status, body = error.status, json.dumps(error.body()).encode()
    elif result.state == "done" and shown.stream:
        status, body = result.status or 200, await _assembled(pool, shown.request_id)
    else:
        status, body = result.status or 200, _embedded(result)
    head = {"status": status, "reason": result.reason or None}
    return json.dumps(head)[:-1].encode() + b',"body":' + body + b"}"


def _embedded(result: Result) -> bytes:
    """The answer's JSON as it is, or its text as a JSON string."""
    if "json" in result.content_type:
        try:
            json.loads(result.body)
        except ValueError:
            pass  # said to be JSON and is not: as text then
        else:
            return result.body
    return json.dumps(result.body.decode(errors="replace")).encode()


async def _assembled(pool: Pool, request_id: str) -> bytes:
    events: list[bytes] = []
    have = 0
    while True:
        (seen,) = await pool.intake.reply("", [(request_id, have)])
        events += [event for _, event in seen.chunks]
        have = seen.chunks[-1][0] if seen.chunks else have
        if seen.ended:
            return json.dumps(assemble(events), separators=(",", ":")).encode()
        if not seen.chunks:
            raise expired(request_id)
