"""OpenAI's endpoints: a body in, the engine's answer out, the queue between."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from forebay_producer.admission import Call, make_admission
from forebay_producer.answers import json_answer
from forebay_producer.asked import read_asked
from forebay_producer.bodies import read_body
from forebay_producer.exchange import Exchange, admit
from forebay_producer.guard import Row, header_map
from forebay_producer.pool import Pool
from forebay_producer.replica import Replica
from forebay_producer.streams import ExchangeStream
from forebay_shared.calls import Admission
from forebay_shared.errors import BodyTooLarge, ModelNotFound

_SERVED_MS = 30_000
"""Workers register far more often: a model not named for so long is not served now."""
GENERATE = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
)


class OpenAIRoutes:
    """Endpoints that the official SDKs call."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def rows(self) -> list[Row]:
        return [
            *(("POST", path, self.generate) for path in GENERATE),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{model:path}", self.model),
        ]

    async def generate(self, request: Request) -> Response:
        """Admit; then wait for the answer, stream it, or tell where it will be."""
        begun = await self._begin(request)
        return await self._answer(begun) if isinstance(begun, Exchange) else begun

    async def _begin(self, request: Request) -> Exchange | Response:
        """Admit; an answer already where the client does not wait for it.

        Apart from the waiting, so that nothing keeps the body meanwhile.
        """
        call = await self._read(request)
        pool = await self._replica.pool_for(call.asked.model)
        if len(call.body) > pool.settings.body_bytes:
            raise BodyTooLarge(f"The body is longer than {pool.settings.body_bytes} bytes.")
        admission = make_admission(call, pool.name, pool.settings)
        self._replica.require_room()
        if call.asynchronous:
            return await self._accept(pool, admission)
        exchange = Exchange(pool, call, admission, request.receive, self._replica.metrics)
        try:
            await exchange.admit(admission, self._replica.timings.overdue_s)
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _read(self, request: Request) -> Call:
        headers = header_map(request)
        caller = self._replica.callers.identify(headers)
        silence_s = self._replica.timings.upload_silence_s
        limit_bytes = self._replica.body_limit()
        body = await read_body(request.receive, headers, limit_bytes, silence_s)
        path: str = request.scope["path"]
        return Call(path, headers, body, read_asked(path, body), caller)

    async def _accept(self, pool: Pool, admission: Admission) -> Response:
        admitted = await admit(pool, admission, self._replica.metrics)
        headers = {
            "x-request-id": admitted.request_id,
            "x-forebay-class": admission.class_name,
            "location": f"/v1/requests/{admitted.request_id}",
            "preference-applied": "respond-async",
        }
        value = {"id": admitted.request_id, "object": "request", "state": admitted.state}
        return json_answer(value, 202, headers)

    async def _answer(self, exchange: Exchange) -> Response:
        streaming = False
        try:
            if not exchange.streams:
                return await exchange.whole_answer()
            streaming = await self._has_begun(exchange)
            if not streaming:
                return exchange.end_answer()
            every_s = exchange.silence_s(self._replica.timings.comment_every_s)
            return ExchangeStream(exchange, every_s)
        finally:
            if not streaming:
                exchange.close()

    async def _has_begun(self, exchange: Exchange) -> bool:
        """Whether a stream's status goes out as 200; False where it ended in an error before."""
        reader = exchange.reader
        await reader.news(exchange.silence_s(self._replica.timings.status_after_s))
        return bool(reader.chunks) or not reader.over or reader.state == "done"

    async def models(self, request: Request) -> Response:
        """The models that a worker serves, or has served within the last day."""
        self._replica.callers.identify(header_map(request))
        return json_answer({"object": "list", "data": self._rows()})

    async def model(self, request: Request) -> Response:
        """One model."""
        self._replica.callers.identify(header_map(request))
        name = request.path_params["model"]
        for row in self._rows():
            if row["id"] == name:
                return json_answer(row)
        raise ModelNotFound(f"The model `{name}` does not exist.", param="model")

    def _rows(self) -> list[dict[str, Any]]:
        seen: dict[str, int] = {}
        for pool in self._replica.pools.values():
            for model, seen_ms in pool.models.items():
                seen[model] = max(seen_ms, seen.get(model, 0))
        served_ms = max(seen.values(), default=0) - _SERVED_MS
        # Clients take the first: those that are served now stand before those that were.
        rows = sorted(seen.items(), key=lambda row: (row[1] < served_ms, row[0]))
        return [
            {"id": model, "object": "model", "created": seen_ms // 1000, "owned_by": "forebay"}
            for model, seen_ms in rows
        ]
