"""Going on with what earlier attempts have begun: reads it back and says how.

A client that has seen some of a stream gets one clean text: the rest of it, exactly, or one error
event. It never gets the beginning again, nor a second text after the first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from forebay_shared.assemble import assemble
from forebay_shared.calls.output import Output
from forebay_shared.logs import event
from forebay_shared.metrics import Metrics
from forebay_shared.records import Envelope, Usage
from forebay_worker.answers import guess
from forebay_worker.delivered import Delivered, read_delivered
from forebay_worker.engine import Engine, EngineBroken
from forebay_worker.link import Link
from forebay_worker.marks import read_ids
from forebay_worker.prepare import Prepared, asks_usage, go_on, prepare
from forebay_worker.resumable import Body, resumable
from forebay_worker.rewriter import Rewriter, compact
from forebay_worker.runs import Run

_MOST_BYTES = 4
"""Bytes of a character, so most tokens of one that is not whole and one more."""
_TEXT_WAIT_S = 5.0
_LOOKED_AT, _COMPARED = 48, 16
"""Tokens whose text is asked for, and letters at its end that are compared."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A text that had been delivered whole: `chunks` are what was to follow it, `body` the answer
    where the client does not stream."""

    finish_reason: str
    usage: Usage
    chunks: list[bytes]
    body: bytes = b""


class Resume:
    """Prepares the engine call of each run, the first as well as those that go on."""

    def __init__(self, engine: Engine, output: Output, link: Link, metrics: Metrics) -> None:
        self._engine = engine
        self._output = output
        self._link = link
        self._metrics = metrics

    async def prepare(self, run: Run, envelope: Envelope) -> Prepared | Ended | None:
        """The call to make; Ended where only the end is missing, None where none can be exact."""
        plan = resumable(envelope) if envelope.stream or envelope.progress else None
        if run.grant.offset:
            return await self._go_on(run, envelope, plan)
        traits = self._engine.traits(envelope.model)
        prepared = prepare(envelope, run.grant.request_id, plan, traits)
        run.continues = prepared.continues
        return prepared

    async def _go_on(
        self, run: Run, envelope: Envelope, plan: Body | None
    ) -> Prepared | Ended | None:
        found = None if plan is None else await self._found(run, envelope, plan)
        # Of a request that does not stream nobody has seen anything: it can always begin anew.
        run.continues = found is not None or not envelope.stream
        if isinstance(found, Prepared):
            event("resume", id=run.grant.request_id, offset=run.grant.offset)
            self._metrics.count("forebay_resumed_total")
        if found is None and not envelope.stream:
            return prepare(envelope, run.grant.request_id)
        return found

    async def _found(self, run: Run, envelope: Envelope, plan: Body) -> Prepared | Ended | None:
        delivered = await self._read(run)
        if delivered is None or delivered.spoiled:
            return None
        if delivered.finish_reason:
            return _ended(envelope, plan, delivered)
        traits = self._engine.traits(envelope.model)
        if traits.token_ids and delivered.marked and not delivered.ends_whole:
            asks_ids = bool(plan.get("return_token_ids"))
            if not await self._cut_to_text(envelope.model, delivered, whole=asks_ids):
                return None
        return go_on(envelope, run.grant.request_id, plan, delivered, traits)

    async def _cut_to_text(self, model: str, delivered: Delivered, *, whole: bool) -> bool:
        """Drop the ids of a character that was not delivered; whether ids and text end together.

        `whole`: none may be dropped, for the client has them.
        """
        expected = _squeezed(delivered.text)
        for dropped in range(1 if whole else _MOST_BYTES):
            ids = delivered.ids[: len(delivered.ids) - dropped]
            text = await self._text_of(model, ids[-_LOOKED_AT:])
            if text is None:
                return False
            said = _squeezed(text)[-_COMPARED:]
            if said and expected.endswith(said):
                delivered.ids = ids
                return True
        return False

    async def _text_of(self, model: str, ids: list[int]) -> str | None:
        try:
            async with asyncio.timeout(_TEXT_WAIT_S):
                return await self._engine.text_of(model, ids)
        except TimeoutError:
            raise EngineBroken("the engine did not say what its tokens mean") from None

    async def _read(self, run: Run) -> Delivered | None:
        request_id = run.grant.request_id

        async def page(after: int, until: int) -> list[tuple[bytes, bytes]]:
            read = partial(self._output.page, request_id, after, until)
            return await self._link.until_answered("output", read)

        delivered = await read_delivered(page, run.grant.offset)
        if delivered is not None and delivered.marked:
            prompt = partial(self._output.prompt, request_id)
            delivered.prompt = read_ids(await self._link.until_answered("output", prompt))
        return delivered


def _ended(envelope: Envelope, plan: Body, delivered: Delivered) -> Ended | None:
    """The end of a text that was delivered whole before its worker was gone."""
    exact = delivered.marked and bool(delivered.prompt)
    usage = Usage(prompt=guess(envelope.body).prompt, output=delivered.pieces)
    if exact:
        usage = Usage(prompt=len(delivered.prompt), output=len(delivered.ids))
    chunks: list[bytes] = []
    if asks_usage(plan) and not delivered.usage_told:
        if not exact:
            return None  # the client would be told numbers that are not true
        chunks.append(Rewriter(delivered.template, usage).usage_chunk())
    body = b"" if envelope.stream else compact(assemble(delivered.events) or {})
    return Ended(delivered.finish_reason, usage, chunks, body)


def _squeezed(text: str) -> str:
    """Without blanks, which engines add and drop between tokens that they read alone."""
    return "".join(text.split())
