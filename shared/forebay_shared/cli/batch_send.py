"""Sending the requests of a batch: asynchronous, bounded in number, repeated until they have ended.

Each request carries an Idempotency-Key that depends on its batch and its try alone. So whatever is
repeated, by a lost connection or by a second run of the command, finds the request that was
admitted before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from forebay_shared.cli.api import Answer, Producer, Unreachable, error_in
from forebay_shared.cli.batch_files import BatchFiles, row_id
from forebay_shared.cli.batch_lines import Line
from forebay_shared.cli.terminal import Problem
from forebay_shared.clock import Clock, SystemClock
from forebay_shared.records import TERMINAL

WAIT_S = 30
PATIENCE_S = 300.0
"""So long a producer may not answer at all before the batch gives up."""
FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 30.0
NEW_TRIES = 3
"""Results may be gone when a batch is taken up again after hours; not so each time."""
REFUSED = frozenset({429, 503})
BROKEN = frozenset({500, 502, 504})
"""From a proxy or a producer in trouble: as if nobody had answered."""


class Expired(Exception):
    """The result of this try is gone; only a new try can bring one."""


class Sender:
    """Sends lines and writes what becomes of them. `progress` is called after each one.

    Raises Problem when no producer has answered for PATIENCE_S, and where the answer to one line
    would be that to all.
    """

    def __init__(
        self,
        producer: Producer,
        files: BatchFiles,
        headers: dict[str, str],
        progress: Callable[[bool], None],
        clock: Clock | None = None,
    ) -> None:
        self._producer = producer
        self._files = files
        self._headers = {"Prefer": "respond-async", **headers}
        self._progress = progress
        self._clock = clock or SystemClock()
        self._answered_s = 0.0

    async def send(self, lines: Sequence[Line], concurrency: int) -> None:
        """Send all lines, at most `concurrency` under way at once; returns when all have ended."""
        self._answered_s = self._clock.now_s()
        waiting = iter(lines)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(concurrency, len(lines))):
                    group.create_task(self._send_from(waiting))
        except ExceptionGroup as group:
            problems = group.subgroup(Problem)
            raise problems.exceptions[0] if problems else group from None

    async def _send_from(self, waiting: Iterator[Line]) -> None:
        for line in waiting:
            self._progress(await self._send_one(line))

    async def _send_one(self, line: Line) -> bool:
        """One line to its end; whether it ended well."""
        first = self._files.next_try(line)
        for try_number in range(first, first + NEW_TRIES):
            try:
                return await self._try(line, try_number)
            except Expired:
                continue
        lost = {"code": "result_expired", "message": "The result was gone before it was read."}
        self._files.write_error(line, try_number, None, lost)
        return False

    async def _try(self, line: Line, try_number: int) -> bool:
        headers = self._headers | {"Idempotency-Key": row_id(line, try_number)}
        answer = await self._until_answered("POST", line.path, line.body, headers)
        if _concerns_all(answer):
            answer.require()
        if not answer.good:
            request_id = answer.headers.get("x-request-id")
            response = _response(answer.status, request_id, answer.value())
            self._files.write_error(line, try_number, response, None)
            return False
        return self._write(line, try_number, await self._ended(answer.record("id")["id"]))

    async def _ended(self, request_id: str) -> dict[str, Any]:
        """The request once it has ended. Raises Expired where its result is gone."""
        while True:
            path = f"/v1/requests/{request_id}?wait={WAIT_S}"
            answer = await self._until_answered("GET", path)
            if answer.status == 404:
                raise Expired
            shown = answer.record("id", "state")
            if shown["state"] in TERMINAL:
                return shown

    def _write(self, line: Line, try_number: int, shown: dict[str, Any]) -> bool:
        result = shown["result"]
        response = _response(result["status"], shown["id"], result["body"])
        if shown["state"] == "done":
            self._files.write_result(line, try_number, response)
            return True
        if shown["state"] == "failed":
            self._files.write_error(line, try_number, response, None)
            return False
        told = error_in(result["body"])
        message = told.get("message") or f"The request is {shown['state']}."
        error = {"code": told.get("code") or shown["state"], "message": message}
        self._files.write_error(line, try_number, None, error)
        return False

    async def _until_answered(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Call until the answer is about the request. Raises Expired, and Problem as `send`."""
        pause_s = FIRST_PAUSE_S
        while True:
            answer = await self._call(method, path, body, headers)
            if answer is not None and answer.status == 410:
                raise Expired
            if answer is not None and not _come_back(answer):
                return answer
            named_s = answer.retry_after_s() if answer is not None else None
            await self._clock.sleep(pause_s if named_s is None else named_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    async def _call(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str] | None
    ) -> Answer | None:
        """One call; None where nobody answered or a proxy answered for nobody."""
        try:
            answer = await self._producer.call(method, path, body, headers)
        except Unreachable:
            answer = None
        now_s = self._clock.now_s()
        if answer is not None and answer.status not in BROKEN:
            self._answered_s = now_s
        elif now_s - self._answered_s > PATIENCE_S:
            raise Problem(
                f"{self._producer.place.url} has not answered for {PATIENCE_S:.0f} s; "
                "run the same command again to go on from here"
            )
        return answer


def _come_back(answer: Answer) -> bool:
    """Whether the same call may be answered otherwise later."""
    if answer.headers.get("x-should-retry") == "false":
        return False
    return answer.status in REFUSED or answer.status in BROKEN


def _concerns_all(answer: Answer) -> bool:
    """Whether every other line would be answered so: a wrong key, or a class that is none."""
    if answer.status in (401, 403):
        return True
    return answer.status == 400 and error_in(answer.value()).get("param") == "X-Priority"


def _response(status: int, request_id: str | None, body: Any) -> dict[str, Any]:
    return {"status_code": status, "request_id": request_id, "body": body}
