"""One request from its grant to its outcome, as a pipeline of named steps:

decode    the stored bytes become an envelope, or the request has failed
prepare   the engine call, with what Forebay asks for itself spliced in
relay     the engine's events pass to the client; usage and finish reason are read on the way
judge     what the engine's end, or its error, means: finished, given back, or dropped
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from forebay_shared.calls import Grant
from forebay_shared.calls.leases import Blame
from forebay_shared.logs import failure
from forebay_shared.records import Envelope, Result, Undecodable
from forebay_worker import outcome as ends
from forebay_worker.answers import StreamReader, finish_reason_in, guess, usage_in
from forebay_worker.capacity import Capacity
from forebay_worker.emit import Emitter, fits
from forebay_worker.engine import (
    Answer,
    Engine,
    EngineBusy,
    EngineError,
    EngineFailed,
    EngineRejected,
    EngineUnreachable,
)
from forebay_worker.outbox import Outbox
from forebay_worker.outcome import Dropped, Finished, GivenBack, Outcome
from forebay_worker.pulse import KEY_REFUSALS, Pulse
from forebay_worker.rules import Rules
from forebay_worker.runs import NOT_CALLED, Run, Runs, Stop
from forebay_worker.splice import Prepared, prepare
from forebay_worker.tail import Tail

ABORTED = "abort"
"""Finish reason of an engine that was stopped: it looks like an end and is none."""
STREAM_TYPE = "text/event-stream"


class OutputTooLarge(Exception):
    """The answer is longer than the settings allow."""


class Executor:
    """Runs granted requests, one task each, and puts their outcomes into the outbox."""

    def __init__(
        self,
        engine: Engine,
        rules: Rules,
        runs: Runs,
        outbox: Outbox,
        emitter: Emitter,
        pulse: Pulse,
        capacity: Capacity,
    ) -> None:
        self._engine = engine
        self._rules = rules
        self._runs = runs
        self._outbox = outbox
        self._emitter = emitter
        self._pulse = pulse
        self._capacity = capacity

    def start(self, grant: Grant, recalled: bool = False) -> Run:
        """Run a granted request; `recalled`: give it back at once, the worker leaves."""
        run, old = self._runs.add(grant)
        if recalled:
            run.stop(Stop.RECALLED)
        if old is not None:
            old.stop(Stop.LOST)
        run.task = asyncio.create_task(self._run(run, old))
        return run

    async def _run(self, run: Run, old: Run | None) -> None:
        run.started = True
        try:
            if old is not None and old.task is not None:
                await asyncio.wait([old.task])  # one engine call a request at a time
            outcome = stopped(run) if run.stopped else await self._attempt(run)
            if isinstance(outcome, Finished):
                await self._emitter.until_fits(run)
        except asyncio.CancelledError:
            if run.stopped is None:
                raise
            outcome = stopped(run)
        except Exception as error:  # noqa: BLE001  one request must not end the worker
            failure("execute failed", error, id=run.grant.request_id)
            trouble = ends.trouble("The request could not be run.")
            outcome = not_again(run, GivenBack(Blame.ATTEMPT, trouble))
        self._outbox.put(run, outcome)

    async def _attempt(self, run: Run) -> Outcome:
        grant = run.grant
        try:
            envelope = Envelope.decode(grant.head, grant.body)
        except Undecodable:
            return ends.undecodable()
        if envelope.stream and run.delivered:
            return ends.interrupted()
        prepared = prepare(envelope, grant.request_id)
        try:
            async with asyncio.timeout(max(0, grant.left_ms) / 1000) as deadline:
                result = await self._relay(run, prepared)
        except EngineError as error:
            return await self._judge_error(run, error)
        except OutputTooLarge:
            run.forget_chunks()
            return ends.too_large()
        except TimeoutError:
            if not deadline.expired():
                raise  # not ours
            # It has passed by the clock of Redis too, whose sweep ends the request within a tick.
            return Dropped()
        finally:
            run.heard_s = NOT_CALLED
        return await self._judge(run, result)

    async def _relay(self, run: Run, prepared: Prepared) -> Result:
        """Pass the events on; the result as the engine told it."""
        prompt = guess(run.grant.body)
        reader, tail = StreamReader(prepared.usage_added, prompt), Tail(prepared.usage_added)
        clock = asyncio.get_running_loop().time
        run.heard_s = clock()
        async with aclosing(self._engine.generate(prepared.call)) as events:
            async for event in events:
                if isinstance(event, Answer):
                    self._pulse.worked()
                    return self._whole(run, event, prepared.call.stream)
                run.heard_s = clock()
                self._pass_on(run, reader, tail, event.data)
        self._pulse.worked()
        run.usage = reader.so_far()
        for chunk in tail.rest():
            run.add(chunk)
        return Result("done", 200, STREAM_TYPE, finish_reason=reader.finish_reason, usage=run.usage)

    def _whole(self, run: Run, answer: Answer, asked_for_stream: bool) -> Result:
        if asked_for_stream:
            # The client waits for events, and this engine has none.
            return ends.trouble("The engine did not stream its answer.")
        if len(answer.body) > self._rules.settings.result_bytes:
            raise OutputTooLarge
        run.usage = usage_in(answer.body) or guess(run.grant.body, answer.body)
        return Result(
            "done",
            answer.status,
            answer.content_type,
            finish_reason=finish_reason_in(answer.body),
            usage=run.usage,
            body=answer.body,
        )

    def _pass_on(self, run: Run, reader: StreamReader, tail: Tail, data: bytes) -> None:
        """One chunk. What comes before the first token waits for it: nobody can use it alone."""
        began = reader.has_output
        due = tail.push(data, reader.read(data))
        run.usage = reader.so_far()
        if not due:
            return
        for chunk in due:
            run.add(chunk)
        if run.output_bytes > self._rules.settings.result_bytes:
            raise OutputTooLarge
        if began:
            self._emitter.soon(run)
        elif reader.has_output:
            self._emitter.now(run)

    async def _judge(self, run: Run, result: Result) -> Outcome:
        """An engine that is being stopped ends its answers with `abort`: that is no success."""
        if result.finish_reason == ABORTED:
            return await self._blamed(
                run, ends.trouble("The engine stopped before its answer was complete.")
            )
        return Finished(result)

    async def _judge_error(self, run: Run, error: EngineError) -> Outcome:
        if isinstance(error, EngineUnreachable | EngineBusy):
            self._refused(error)
            return not_again(run, GivenBack(Blame.BLAMELESS, ends.last_words(error)))
        if isinstance(error, EngineRejected) and error.status in KEY_REFUSALS:
            return await self._key_refused(error)
        if isinstance(error, EngineRejected | EngineFailed) and (
            error.status < 500 or run.delivered
        ):
            return ends.refused(error)
        return await self._blamed(run, ends.last_words(error))

    async def _key_refused(self, error: EngineRejected) -> Outcome:
        """The key is ours, so no client is to blame or to be told.

        But 403 where the key is let in may be about this very request, and must not go round for
        ever: that is an attempt.
        """
        let_in = await self._pulse.refused_key(error.status)
        if error.status == 403 and let_in:
            return GivenBack(Blame.ATTEMPT, ends.last_words(error))
        return GivenBack(Blame.BLAMELESS, ends.trouble("The engine refused this server's key."))

    async def _blamed(self, run: Run, result: Result) -> Outcome:
        if run.delivered:
            return ends.interrupted()  # it cannot be run again, whoever is to blame
        run.forget_chunks()  # nor shall any be delivered while the engine's health is asked
        return GivenBack(await self._pulse.blame(), result)

    def _refused(self, error: EngineError) -> None:
        if self._pulse.refused() and isinstance(error, EngineBusy):
            self._capacity.refused(self._runs.active - 1)


def not_again(run: Run, back: GivenBack) -> Outcome:
    """Given back, unless a client has seen some of the stream: that cannot be run again."""
    if not run.delivered:
        return back
    if not fits(run):
        run.forget_chunks()
    return ends.interrupted()


def stopped(run: Run) -> Outcome:
    """The outcome of a run that was stopped from outside."""
    match run.stopped:
        case Stop.RECALLED:
            back = GivenBack(Blame.BLAMELESS, ends.trouble("The worker was stopped."))
            return not_again(run, back)
        case Stop.WEDGED:
            back = GivenBack(Blame.CRASHED, ends.trouble("The engine stopped answering."))
            return not_again(run, back)
        case Stop.LARGE:
            run.forget_chunks()
            return ends.too_large()
        case Stop.GAP:
            run.forget_chunks()
            return ends.interrupted()
        case _:
            return Dropped()
