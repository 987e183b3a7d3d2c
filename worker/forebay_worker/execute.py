"""One request from its grant to its outcome, as a pipeline of named steps:

decode    the stored bytes become an envelope, or the request has failed
prepare   the engine call, with what Forebay asks for itself spliced in, or the one that goes on
          after what an earlier attempt has delivered
relay     the engine's events pass to the client; usage and finish reason are read on the way
judge     what the engine's end, or its error, means: finished, given back, or dropped
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from forebay_shared.calls import Grant
from forebay_shared.calls.work import Blame
from forebay_shared.logs import failure
from forebay_shared.records import Envelope, Result, Undecodable
from forebay_worker import outcome as ends
from forebay_worker.answers import finish_reason_in, guess, usage_in
from forebay_worker.emit import Emitter
from forebay_worker.engine import Answer, Engine, EngineBroken, EngineError, EngineRejected
from forebay_worker.judge import Judge, not_again, stopped
from forebay_worker.outbox import Outbox
from forebay_worker.outcome import Dropped, Finished, GivenBack, Outcome
from forebay_worker.passage import Passage
from forebay_worker.prepare import Prepared, prepare
from forebay_worker.resume import Ended, Resume
from forebay_worker.rewriter import compact
from forebay_worker.rules import Rules
from forebay_worker.runs import NOT_CALLED, Run, Runs, Stop

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
        resume: Resume,
        judge: Judge,
    ) -> None:
        self._engine = engine
        self._rules = rules
        self._runs = runs
        self._outbox = outbox
        self._emitter = emitter
        self._resume = resume
        self._judge = judge

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
        try:
            async with asyncio.timeout(max(0, grant.left_ms) / 1000) as deadline:
                prepared = await self._resume.prepare(run, envelope)
                if not isinstance(prepared, Prepared):
                    return self._nothing_to_ask(run, prepared)
                result = await self._answer(run, envelope, prepared)
        except EngineError as error:
            return await self._judge.error(run, error)
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
        return await self._judge.end(run, result)

    async def _answer(self, run: Run, envelope: Envelope, prepared: Prepared) -> Result:
        try:
            return await self._relay(run, prepared)
        except EngineRejected:
            if not (prepared.rewriter and prepared.assembles):
                raise
        # What was asked was our own question, and nobody has read any of it: it begins anew.
        run.forget_chunks()
        return await self._relay(run, prepare(envelope, run.grant.request_id))

    def _nothing_to_ask(self, run: Run, ended: Ended | None) -> Outcome:
        """What was delivered cannot be gone on with, or was all but its end."""
        if ended is None:
            return ends.interrupted()
        run.usage = ended.usage
        if ended.body:
            return Finished(self._assembled(run, ended.finish_reason, ended.body))
        for chunk in ended.chunks:
            run.add(chunk)
        return Finished(self._streamed(run, ended.finish_reason))

    async def _relay(self, run: Run, prepared: Prepared) -> Result:
        """Pass the events on; the result as the engine told it."""
        passage = Passage(prepared, guess(run.grant.body))
        clock = asyncio.get_running_loop().time
        run.heard_s = clock()
        try:
            async with aclosing(self._engine.generate(prepared.call)) as events:
                async for event in events:
                    if isinstance(event, Answer):
                        self._judge.worked()
                        return self._whole(run, event, prepared)
                    run.heard_s = clock()
                    self._pass_on(run, passage, event.data)
        except EngineBroken:
            if not passage.complete:
                raise
        self._judge.worked()
        for chunk, mark in passage.rest():
            run.add(chunk, mark)
        if prepared.assembles:
            return self._assembled(run, passage.finish_reason, compact(passage.whole()))
        return self._streamed(run, passage.finish_reason)

    def _assembled(self, run: Run, finish_reason: str, body: bytes) -> Result:
        """The whole answer of a request whose client does not stream."""
        if len(body) > self._rules.settings.result_bytes:
            raise OutputTooLarge
        return Result("done", 200, finish_reason=finish_reason, usage=run.usage, body=body)

    def _streamed(self, run: Run, finish_reason: str) -> Result:
        return Result("done", 200, STREAM_TYPE, finish_reason=finish_reason, usage=run.usage)

    def _whole(self, run: Run, answer: Answer, prepared: Prepared) -> Result:
        if prepared.call.stream and (prepared.rewriter or not prepared.assembles):
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

    def _pass_on(self, run: Run, passage: Passage, data: bytes) -> None:
        """One chunk. What comes before the first token waits for it: nobody can use it alone."""
        began = passage.has_output
        due = passage.push(data)
        run.usage = passage.usage
        if not due:
            return
        for chunk, mark in due:
            run.add(chunk, mark)
        run.continues = run.continues and not passage.spoiled
        if run.output_bytes > self._rules.settings.result_bytes:
            raise OutputTooLarge
        if began:
            self._emitter.soon(run)
        elif passage.has_output:
            self._emitter.now(run)
