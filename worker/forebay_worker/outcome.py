"""How a run can end: the closed set of outcomes, and the results that go with them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from forebay_shared.calls.work import Blame
from forebay_shared.errors import (
    BY_REASON,
    Ended,
    ForebayError,
    Interrupted,
    Lost,
    ResultTooLarge,
)
from forebay_shared.records import Result
from forebay_worker.engine import EngineError, EngineFailed, EngineRejected


@dataclass(frozen=True, slots=True)
class Finished:
    """The request ends with this result."""

    result: Result


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The request is released; `result` is stored if this was its last attempt."""

    blame: Blame
    result: Result


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nothing is written: the lease is lost, or Redis ends the request by itself."""


Outcome = Finished | GivenBack | Dropped
EngineAnswered = EngineRejected | EngineFailed


class EngineTrouble(ForebayError):
    """The engine did not answer as it should; repeat the request."""

    status, code = 502, "engine_failed"


def interrupted() -> Finished:
    """Some of the stream was delivered and it cannot be continued exactly."""
    return _ended(Interrupted("The stream was interrupted and cannot be continued; retry it."))


def undecodable() -> Finished:
    """What is stored cannot be read."""
    return _ended(Lost("The stored request cannot be read."), "undecodable")


def too_large() -> Finished:
    """Result and output are longer than the settings allow."""
    return _ended(ResultTooLarge("The answer is longer than this server allows; ask for less."))


def refused(error: EngineAnswered) -> Finished:
    """The engine's own error answer goes to the client as it is."""
    return Finished(answered(error))


def answered(error: EngineAnswered) -> Result:
    """The result that passes the engine's error answer on."""
    return Result("failed", error.status, error.content_type, body=error.body)


def trouble(message: str) -> Result:
    """The result of a request whose engine failed without an answer that could be passed on."""
    return _failed(EngineTrouble(message))


def last_words(error: EngineError) -> Result:
    """What a client gets if no attempt is left after this error."""
    if isinstance(error, EngineRejected | EngineFailed):
        return answered(error)
    return trouble("The engine broke off before its answer was complete; retry the request.")


_REASON_OF = {kind: reason for reason, kind in reversed(BY_REASON.items())}


def _ended(error: Ended, reason: str = "") -> Finished:
    return Finished(_failed(error, reason or _REASON_OF[type(error)]))


def _failed(error: ForebayError, reason: str = "") -> Result:
    body = json.dumps(error.body(), separators=(",", ":")).encode()
    return Result("failed", error.status, reason=reason, body=body)
