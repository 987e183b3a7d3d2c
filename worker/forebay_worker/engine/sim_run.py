"""One call inside a simulated engine: what it has said and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from forebay_worker.engine.base import EngineBroken, EngineBusy, EngineError, EngineFailed
from forebay_worker.engine.sim_batch import Sequence
from forebay_worker.engine.sim_fields import error_body
from forebay_worker.engine.sim_log import CallRecord, Totals
from forebay_worker.engine.sim_pooling import PoolingRequest
from forebay_worker.engine.sim_request import TextRequest
from forebay_worker.engine.sim_writer import Delta, Writer

# Faults that need no token strike before the batch is entered.
_AT_THE_DOOR = frozenset({"500", "503", "broken", "crash"})


class Run:
    """A call's sequences on one side, the one who waits for their tokens on the other."""

    def __init__(
        self,
        request: TextRequest | PoolingRequest,
        record: CallRecord,
        totals: Totals,
        crash: Callable[[], None],
    ) -> None:
        self.request = request
        self.stream = isinstance(request, TextRequest) and request.form.stream
        self.writers = request.writers if isinstance(request, TextRequest) else []
        self.sequences: list[Sequence] = []
        self.open = len(self.writers) or len(request.prompts)
        self._record = record
        self._totals = totals
        self._crash = crash
        self._deltas: list[Delta] = []
        self._failure: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def said(self) -> int:
        """Tokens of all choices so far."""
        return self._record.output_tokens

    def enter(self) -> None:
        """Count the prompts. Raises what is ordered to fail at once."""
        fault = self.request.common.fault
        if fault is not None and fault.after_tokens == 0 and fault.kind in _AT_THE_DOOR:
            self._strike(fault.kind)
            self._raise_failure()
        self._totals.prompt_tokens += sum(len(prompt) for prompt in self.request.prompts)

    def make_sequences(self) -> list[Sequence]:
        """What the batch has to run: one sequence for each choice or pooled prompt."""
        if isinstance(self.request, PoolingRequest):
            self.sequences = [Sequence(len(prompt), self._pool) for prompt in self.request.prompts]
        else:
            self.sequences = [
                Sequence(len(self.request.prompt_of(writer.choice)), partial(self._say, writer))
                for writer in self.writers
            ]
        return self.sequences

    def say_round(self) -> None:
        """One token of every open choice, outside any batch."""
        for writer in self.writers:
            if not writer.done and self.open:
                self._say(writer)

    def fail(self, error: EngineError) -> None:
        """End the call with this error, after what was said."""
        self._failure = error
        self._end()

    def abort(self) -> None:
        """End every open choice with finish reason `abort`."""
        for writer in self.writers:
            if not writer.done:
                self._add(writer.abort())
        if self.open:
            self._end()

    async def next(self) -> list[Delta]:
        """What was said since; empty at the end. A call that does not stream waits for its end.

        Raises the error that ended the call.
        """
        while self.open and not (self.stream and self._deltas):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.take()

    def take(self) -> list[Delta]:
        """What was said since; raises the error that ended the call, after the last words."""
        deltas, self._deltas = self._deltas, []
        if not deltas or not self.stream:
            self._raise_failure()
        return deltas

    def _say(self, writer: Writer) -> bool:
        """One token; True when the batch is done with this choice."""
        delta = writer.next()
        fault = self.request.common.fault
        if fault is not None and (
            self._record.output_tokens >= fault.after_tokens or delta.finish is not None
        ):
            self._strike(fault.kind)
            return True
        self._record.output_tokens += 1
        self._totals.generation_tokens += 1
        self._add(delta)
        return delta.finish is not None

    def _pool(self) -> bool:
        self._close_one()
        return True

    def _add(self, delta: Delta) -> None:
        self._deltas.append(delta)
        if delta.finish is not None:
            self._totals.finished[delta.finish] += 1
            self._close_one()
        elif self.stream:
            self._wake()

    def _close_one(self) -> None:
        self.open -= 1
        if self.open == 0 or self.stream:
            self._wake()

    def _end(self) -> None:
        self.open = 0
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _strike(self, kind: str) -> None:
        if kind == "crash":
            self._crash()
        elif kind == "abort":
            self.abort()
        elif kind == "503":
            self.fail(EngineBusy("the simulated engine is full"))
        elif kind == "broken":
            self.fail(EngineBroken("the simulated connection broke"))
        else:
            body = error_body(500, "InternalServerError", "the simulated engine failed")
            self.fail(EngineFailed(500, "application/json", body))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
