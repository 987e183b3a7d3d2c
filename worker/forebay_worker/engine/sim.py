"""An engine without a model: continuous batching, KV blocks and texts, in process.

The same request gives the same text on every engine of the same seed and model. A request may
order its own failure with the body field `sim`:

    {"sim": {"fail": kind, "after_tokens": n}}      n tokens come first, 0 by default

    500          the engine answers 500
    503          the engine is full
    abort        ends as in an engine that is being stopped: finish_reason "abort"
    error_event  an error inside a stream that began well (at least one token comes first)
    broken       the connection breaks
    crash        the engine dies, and with it everything it runs, until `restart()`

A text that would end before n tokens fails where it would end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from forebay_worker.engine.base import (
    Answer,
    Chunk,
    EngineBroken,
    EngineCall,
    EngineError,
    EngineEvent,
    EngineRejected,
    EngineUnreachable,
    Load,
    Traits,
)
from forebay_worker.engine.profile import DEFAULT, Profile, named
from forebay_worker.engine.sim_answer import ChunkWriter, TextAnswer
from forebay_worker.engine.sim_batch import Batch
from forebay_worker.engine.sim_fields import Body, parse_body
from forebay_worker.engine.sim_log import CallRecord, Totals
from forebay_worker.engine.sim_pooling import (
    PoolingRequest,
    read_embedding,
    read_rerank,
    read_score,
)
from forebay_worker.engine.sim_request import Setting, TextRequest, read_chat, read_completion
from forebay_worker.engine.sim_run import Run
from forebay_worker.engine.sim_writer import Delta

_Reader = Callable[[EngineCall, Body, Setting], TextRequest | PoolingRequest]
_READERS: dict[str, _Reader] = {
    "/v1/chat/completions": read_chat,
    "/v1/completions": read_completion,
    "/v1/embeddings": read_embedding,
    "/v1/score": read_score,
    "/v1/rerank": read_rerank,
}
_MOST_LATE_S = 0.1  # a batch that is later (the process was stopped) starts anew
_MOST_CALLS = 100_000  # remembered, oldest forgotten first
_TOKENS_A_TURN = 32  # of an instant stream, before others run


class SimEngine:
    """A simulated engine; `profile` is a Profile or the name of one (`default`, `zero`).

    `speed` divides all times. Raises ValueError for an unknown profile, no model, or a speed
    that is not above zero.
    """

    def __init__(
        self,
        profile: Profile | str = DEFAULT,
        models: Sequence[str] = ("sim",),
        seed: int = 0,
        speed: float = 1.0,
    ) -> None:
        self.profile = named(profile)
        self.totals = Totals()
        self.calls: deque[CallRecord] = deque(maxlen=_MOST_CALLS)
        if not models or speed <= 0:
            raise ValueError("a simulated engine needs a model and a speed above zero")
        self._setting = Setting(tuple(models), seed, self.profile.max_model_len)
        self._speed = speed
        self._batch = Batch(self.profile)
        self._runs: set[Run] = set()
        self._work = asyncio.Event()
        self._alive = False
        self._scheduler: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._alive = True
        if self._scheduler is None:
            self._scheduler = asyncio.create_task(self._schedule(), name="sim scheduler")

    async def close(self) -> None:
        """Stop; running calls end with EngineBroken."""
        self._die()
        task, self._scheduler = self._scheduler, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def crash(self) -> None:
        """Die: running calls end with EngineBroken, new ones with EngineUnreachable."""
        self._die()

    def restart(self) -> None:
        """Live again after a crash, with nothing running and counters at zero."""
        self._batch = Batch(self.profile)
        self.totals = Totals()
        self._alive = True

    def abort_all(self) -> None:
        """End all texts as an engine does that is being stopped: finish reason `abort`."""
        for run in tuple(self._runs):
            self._drop(run)
            run.abort()

    async def health(self) -> bool:
        return self._alive

    async def models(self) -> list[str]:
        self._require_alive()
        return list(self._setting.models)

    def traits(self, model: str) -> Traits:
        return Traits(True, True, self.profile.max_model_len)

    async def text_of(self, model: str, token_ids: Sequence[int]) -> str | None:
        return None  # each chunk holds one token: nobody needs to ask

    async def load(self) -> Load:
        self._require_alive()
        batch = self._batch
        return Load(
            running=len(self._runs) if self.profile.instant else batch.running,
            waiting=batch.waiting,
            kv_usage=batch.kv_usage,
            preemptions=batch.preemptions,
            kv_tokens=self.profile.kv_tokens,
            slots=self.profile.slots,
        )

    async def generate(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
        self._require_alive()
        record = CallRecord(call.request_id)
        self.calls.append(record)
        run: Run | None = None
        try:
            request = self._read(call)
            run = Run(request, record, self.totals, self.crash)
            self._admit(run)
            if isinstance(request, TextRequest) and request.form.stream:
                writer = ChunkWriter(request)
                while deltas := await self._next(run):
                    for data in writer.chunks(deltas):
                        yield Chunk(data)
                for data in writer.closing():
                    yield Chunk(data)
                record.end("done")
            else:
                answer = _answer(request, await self._next(run))
                record.end("done")
                yield answer
        except EngineError:
            record.end("failed")
            raise
        finally:
            record.end("aborted")
            if run is not None:
                self._drop(run)

    def _read(self, call: EngineCall) -> TextRequest | PoolingRequest:
        read = _READERS.get(call.path)
        if read is None:
            raise EngineRejected(404, "application/json", b'{"detail":"Not Found"}')
        return read(call, parse_body(call.body), self._setting)

    def _die(self) -> None:
        self._alive = False
        for run in tuple(self._runs):
            self._drop(run)
            run.fail(EngineBroken("the engine died"))

    def _admit(self, run: Run) -> None:
        self._runs.add(run)
        run.enter()
        if not self.profile.instant:
            for sequence in run.make_sequences():
                self._batch.add(sequence, run.request.common.priority)
            self._work.set()

    def _drop(self, run: Run) -> None:
        """Free all that a call holds, at once."""
        self._runs.discard(run)
        for sequence in run.sequences:
            self._batch.remove(sequence)

    async def _next(self, run: Run) -> list[Delta]:
        if not self.profile.instant:
            return await run.next()
        if isinstance(run.request, PoolingRequest):
            return []
        while True:
            run.say_round()
            if run.said % _TOKENS_A_TURN == 0:
                await asyncio.sleep(0)
            if run.stream or not run.open:
                return run.take()

    async def _schedule(self) -> None:
        """Step the batch until the engine closes; without its scheduler no engine is alive."""
        try:
            await self._step_for_ever()
        finally:
            self._die()

    async def _step_for_ever(self) -> None:
        """Each step ends at the time it is due."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            step_s = self._batch.begin_step()
            if step_s == 0:
                self._work.clear()
                await self._work.wait()
                due = loop.time()
                continue
            due = max(due + step_s / self._speed, loop.time() - _MOST_LATE_S)
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._batch.end_step()

    def _require_alive(self) -> None:
        if not self._alive:
            raise EngineUnreachable("the engine is not running")


def _answer(request: TextRequest | PoolingRequest, deltas: list[Delta]) -> Answer:
    if isinstance(request, PoolingRequest):
        body = request.answer()
    else:
        body = TextAnswer(request).whole(deltas)
    return Answer(200, "application/json", body)
