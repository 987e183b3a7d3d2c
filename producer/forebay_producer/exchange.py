"""One synchronous request: from admit to the last byte of its answer, or to a client's hang-up."""

from __future__ import annotations

import asyncio
import time

from redis.exceptions import RedisError
from starlette.responses import Response
from starlette.types import Receive

from forebay_producer.admission import Call
from forebay_producer.answers import error_answer, raw_answer
from forebay_producer.bodies import ClientGone
from forebay_producer.inbox import Inbox
from forebay_producer.outcomes import ended_error, left_error, refusal_error
from forebay_producer.pool import Pool
from forebay_producer.reader import Left, Reader
from forebay_producer.tiers import served_tier, splice_tier
from forebay_shared.calls import Admission, Admitted
from forebay_shared.calls.requests import UNKNOWN
from forebay_shared.connect import redis_full
from forebay_shared.errors import ForebayError, Gone
from forebay_shared.metrics import Metrics
from forebay_shared.records import Result

_LEAST_SILENCE_S = 0.1


async def hang_up(receive: Receive, reader: Reader) -> None:
    """Let the reader leave when the client does."""
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.leave(Left.CLIENT)


async def admit(pool: Pool, admission: Admission, metrics: Metrics) -> Admitted:
    """Store the request. Raises the refusal, or what Redis raises; then it is not stored.

    With an Idempotency-Key it may be stored even so: the client's repeat finds it.
    """
    try:
        answer = await pool.admitter.admit(admission)
    except RedisError as error:
        if not (admission.idempotency or redis_full(error)):
            pool.canceller.leave_in_doubt(admission.request_id)
        raise
    if isinstance(answer, Admitted):
        labels = {"class": admission.class_name}
        metrics.count("forebay_admitted_total", 1, **labels)
        return answer
    raise refusal_error(answer, pool.settings.retry_clamp_ms)


class Exchange:
    """Holds a reader while the client waits; `close` must be called, once, at the end."""

    def __init__(
        self, pool: Pool, call: Call, admission: Admission, receive: Receive, metrics: Metrics
    ) -> None:
        # Not the admission and not the call: a client that waits must not cost its body's bytes.
        self._pool = pool
        self._class = admission.class_name
        self._have = 0 if admission.envelope.stream else UNKNOWN
        self._metrics = metrics
        self._started_s = time.monotonic()
        self._repeats = not admission.idempotency
        """Whether a client that is told to repeat it gets a new request."""
        self._patience_s = call.patience_s
        self.tier = served_tier(call.asked, admission.class_name)
        self.headers = {
            "x-request-id": admission.request_id,
            "x-forebay-class": admission.class_name,
        }
        self._receive = receive
        self.reader = pool.inbox.open(admission.request_id, self._have)
        self._watch = asyncio.create_task(hang_up(receive, self.reader))
        self._overdue: asyncio.TimerHandle | None = None

    @property
    def inbox(self) -> Inbox:
        """Where the reader is filled."""
        return self._pool.inbox

    @property
    def streams(self) -> bool:
        """Whether the client reads chunks."""
        return self._have != UNKNOWN

    def silence_s(self, usual_s: float) -> float:
        """`usual_s`, or less where the client would not be silent with us for so long."""
        if self._patience_s is None:
            return usual_s
        return min(usual_s, max(self._patience_s / 2, _LEAST_SILENCE_S))

    async def admit(self, admission: Admission, overdue_s: float) -> None:
        """Store the request and watch it. Raises the refusal, or what Redis raises."""
        admitted = await admit(self._pool, admission, self._metrics)
        if admitted.repeated:
            self._follow(admitted.request_id)
            self._pool.inbox.ask(self.reader)
        self._pool.inbox.arm(self.reader)
        wait_s = admission.timeout_ms / 1000 + overdue_s
        self._overdue = asyncio.get_running_loop().call_later(
            wait_s, self.reader.leave, Left.OVERDUE
        )

    def _follow(self, request_id: str) -> None:
        """Read an earlier request instead: the same Idempotency-Key was used for it."""
        if request_id == self.reader.request_id:
            return
        gone = self.reader.left
        self._watch.cancel()
        self._pool.inbox.close(self.reader)
        self.reader = self._pool.inbox.open(request_id, self._have)
        self._watch = asyncio.create_task(hang_up(self._receive, self.reader))
        self.headers["x-request-id"] = request_id
        if gone is not None:
            self.reader.leave(gone)

    def begin(self) -> None:
        """Note that the status goes out: from now on the client can read on elsewhere."""
        self._repeats = False

    def first_event(self) -> None:
        """Note that the first chunk goes out."""
        self._observe("forebay_first_event_seconds")

    def _observe(self, name: str) -> None:
        took_s = time.monotonic() - self._started_s
        self._metrics.observe(name, took_s, **{"class": self._class})

    def close(self) -> None:
        """The answer is out, or nobody here wants it any more."""
        self._watch.cancel()
        if self._overdue is not None:
            self._overdue.cancel()
        left = self.reader.left
        state = self.reader.state or (left.name.lower() if left else "refused")
        self._pool.close_reader(self.reader)
        if left is Left.DRAIN and self._repeats and self.reader.armed:
            self._pool.canceller.leave(self.reader.request_id)
        self._observe("forebay_reply_seconds")
        labels = {"class": self._class, "state": state}
        self._metrics.count("forebay_replied_total", 1, **labels)

    async def whole_answer(self) -> Response:
        """Wait for the end and answer with the result."""
        await self.reader.end()
        return self.end_answer()

    def end_answer(self) -> Response:
        """The result as an HTTP answer. Raises ClientGone where nobody is there to read it."""
        if self.reader.left is Left.CLIENT:
            raise ClientGone
        outcome = self.outcome()
        if isinstance(outcome, ForebayError):
            return error_answer(outcome, self.headers)
        if outcome.state != "done":
            return self._failed_answer(outcome)
        body = splice_tier(outcome.body, self.tier)
        return raw_answer(body, outcome.status or 200, self.headers, outcome.content_type)

    def _failed_answer(self, result: Result) -> Response:
        headers = dict(self.headers)
        if result.status >= 500:
            headers["x-should-retry"] = "false"  # every attempt that the pool allows was made
        return raw_answer(result.body, result.status, headers, result.content_type)

    def outcome(self) -> Result | ForebayError:
        """The result where its own status and body tell all, else the error to answer with."""
        return outcome_of(self.reader)


def outcome_of(reader: Reader) -> Result | ForebayError:
    """How it ended for a reader that is over: see `Exchange.outcome`."""
    if reader.left is not None:
        return left_error(reader.left)
    if not reader.result:
        return Gone(f"The result of request {reader.request_id} has expired.")
    result = Result.decode(reader.result)
    if result.state == "done" or (result.status >= 400 and result.body):
        return result
    return ended_error(result)
