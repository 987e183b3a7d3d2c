"""What the end of an engine's call means: finished, given back and with whose blame, or dropped."""

from __future__ import annotations

from forebay_shared.calls.work import Blame
from forebay_shared.records import Result
from forebay_worker import outcome as ends
from forebay_worker.capacity import Capacity
from forebay_worker.emit import fits
from forebay_worker.engine import (
    EngineBusy,
    EngineError,
    EngineFailed,
    EngineRejected,
    EngineUnreachable,
)
from forebay_worker.outcome import Dropped, Finished, GivenBack, Outcome
from forebay_worker.passage import ABORTED
from forebay_worker.pulse import KEY_REFUSALS, Pulse
from forebay_worker.runs import Run, Runs, Stop


class Judge:
    """Judges answers and errors by what the engine says of its health a while later."""

    def __init__(self, pulse: Pulse, capacity: Capacity, runs: Runs) -> None:
        self._pulse = pulse
        self._capacity = capacity
        self._runs = runs

    def worked(self) -> None:
        """The engine answered a call to its end."""
        self._pulse.worked()

    async def end(self, run: Run, result: Result) -> Outcome:
        """What an answer means that looks complete.

        An engine that is being stopped ends its answers with `abort`: that is no success.
        """
        if result.finish_reason == ABORTED:
            return await self._blamed(
                run, ends.trouble("The engine stopped before its answer was complete.")
            )
        return Finished(result)

    async def error(self, run: Run, error: EngineError) -> Outcome:
        """What an error of the engine means for the request."""
        if isinstance(error, EngineUnreachable | EngineBusy):
            self._refused(error)
            return not_again(run, GivenBack(Blame.BLAMELESS, ends.last_words(error)))
        if isinstance(error, EngineRejected) and error.status in KEY_REFUSALS:
            return await self._key_refused(error)
        if isinstance(error, EngineRejected | EngineFailed) and (error.status < 500 or run.stuck):
            # What a continuation is refused for is our own question, none that the client asked.
            return ends.interrupted() if run.grant.offset else ends.refused(error)
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
        if run.stuck:
            return ends.interrupted()  # whoever is to blame
        run.forget_chunks()  # nor shall any be delivered while the engine's health is asked
        return GivenBack(await self._pulse.blame(), result)

    def _refused(self, error: EngineError) -> None:
        if self._pulse.refused() and isinstance(error, EngineBusy):
            self._capacity.refused(self._runs.active - 1)


def not_again(run: Run, back: GivenBack) -> Outcome:
    """Given back, unless a client has seen some of it that cannot be gone on with."""
    if not run.stuck:
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
