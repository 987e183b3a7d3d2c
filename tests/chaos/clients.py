"""Clients of several kinds, which repeat, reconnect, cancel and hang up, and note what they saw."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from time import monotonic
from typing import Any

import aiohttp
from tests.chaos.ops import Op, draw_op
from tests.chaos.reading import Reading, text_of
from tests.chaos.replies import Reply, ended, read_reply
from tests.chaos.stage import Stage

from forebay_shared.records import TERMINAL

OP_S = 60.0
"""A client that has no answer after so long gives up."""
SILENT_S = 60.0
PAUSE_S = (0.05, 0.5)
THINK_S = (0.05, 0.6)
BROKEN = (aiohttp.ClientError, TimeoutError)
NOT_STORED = frozenset({"queue_full", "draining", "rate_limit_exceeded", "model_not_found"})


class Load:
    """The clients of one run: who they talk to, and where they note what they saw."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.http = stage.http
        self.history = stage.history
        self.stop = asyncio.Event()
        self._seed = seed
        self._model = stage.scene.model
        self._numbers = itertools.count(1)
        self._replicas = itertools.cycle(stage.replicas)

    async def client(self, number: int) -> None:
        """One client after another operation, until told to stop."""
        dice = Random(f"{self._seed}/client/{number}")
        while not self.stop.is_set():
            await Client(
                self, draw_op(self._seed, next(self._numbers), self._model), dice
            ).perform()
            await asyncio.sleep(dice.uniform(*THINK_S))

    def replica(self) -> str:
        """By turns, dead ones too: whoever repeats comes to the other."""
        return next(self._replicas)


class Client:
    """Performs one operation."""

    def __init__(self, load: Load, op: Op, dice: Random) -> None:
        self._load = load
        self._op = op
        self._dice = dice
        self._until_s = monotonic() + OP_S

    async def perform(self) -> None:
        op = self._op
        self._note(
            "invoke", kind=op.kind, path=op.path, body=op.body, key=op.key, timeout_ms=op.timeout_ms
        )
        try:
            await self._act()
        except asyncio.CancelledError:
            self._note("info", why="gave up")
            raise

    async def _act(self) -> None:
        match self._op.kind:
            case "answer" | "refuse" | "expire":
                await self._answer()
            case "twins":
                await asyncio.gather(self._answer(), self._answer())
            case "stream":
                await self._stream()
            case "submit":
                await self._submitted(self._await_result)
            case "follow":
                await self._submitted(self._follow_cut)
            case "cancel":
                await self._submitted(self._cancel)
            case "hangup":
                await self._hang_up()

    def _note(self, kind: str, /, **fields: Any) -> None:
        self._load.history.write(kind, op=self._op.number, **fields)

    def _overdue(self) -> bool:
        return monotonic() > self._until_s

    async def _pause(self) -> None:
        await asyncio.sleep(self._dice.uniform(*PAUSE_S))

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, **named: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = self._load.replica() + path
        silent = aiohttp.ClientTimeout(total=None, sock_read=SILENT_S, sock_connect=5)
        async with self._load.http.request(method, url, timeout=silent, **named) as answer:
            yield answer

    def _post(self) -> Any:
        op = self._op
        return self._request("POST", op.path, json=op.body, headers=op.headers())

    async def _until_answered(self, method: str, path: str, **named: Any) -> Reply | None:
        """The first answer that is one; None where there was none in time."""
        while not self._overdue():
            try:
                async with self._request(method, path, **named) as answer:
                    reply = await read_reply(answer)
            except BROKEN as error:
                self._note("trouble", why=type(error).__name__)
            else:
                if not reply.repeat:
                    return reply
                kind = "refused" if reply.code in NOT_STORED else "trouble"
                self._note(kind, status=reply.status, code=reply.code)
            await self._pause()
        self._note("info", why="gave up")
        return None

    async def _answer(self) -> None:
        op = self._op
        reply = await self._until_answered("POST", op.path, json=op.body, headers=op.headers())
        if reply is not None:
            self._ended(reply)

    def _ended(self, reply: Reply) -> None:
        """An answer that tells how the request ended."""
        if reply.status < 500 and reply.status not in (200, 499):
            self._note("fail", status=reply.status, code=reply.code)
            return
        self._note("accepted", id=reply.request_id)
        self._note("seen", id=reply.request_id, state=reply.state, code=reply.code)
        text = text_of(reply.body) if reply.status == 200 else None
        self._note("ok", id=reply.request_id, state=reply.state, text=text)

    async def _stream(self) -> None:
        reading: Reading | None = None
        try:
            async with self._post() as answer:
                if answer.status != 200:
                    self._stream_refused(await read_reply(answer))
                    return
                reading = self._begin(answer.headers["x-request-id"])
                await reading.read(answer)
        except BROKEN as error:
            self._note("trouble", why=type(error).__name__)
        if reading is None:
            self._note("info", why="no answer")
            return
        if reading.failed:
            await self._await_result(reading.request_id)
        elif reading.state:
            self._finished(reading)
        else:
            await self._follow(reading)

    def _stream_refused(self, reply: Reply) -> None:
        if reply.code in NOT_STORED:
            self._note("fail", status=reply.status, code=reply.code)
        elif reply.repeat:
            self._note("info", why=reply.code)
        else:
            self._ended(reply)

    def _begin(self, request_id: str) -> Reading:
        self._note("accepted", id=request_id)
        return Reading(self._load.history, self._op.number, request_id)

    async def _submitted(self, then: Any) -> None:
        op = self._op
        reply = await self._until_answered("POST", op.path, json=op.body, headers=op.headers())
        if reply is None:
            return
        if reply.status != 202:
            self._note("fail", status=reply.status, code=reply.code)
            return
        self._note("accepted", id=reply.request_id)
        await then(reply.request_id)

    async def _await_result(self, request_id: str) -> None:
        """GET until the state is final."""
        while True:
            path = f"/v1/requests/{request_id}?wait=5"
            reply = await self._until_answered("GET", path)
            if reply is None:
                return
            if reply.status != 200:
                self._note("info", why="missing", status=reply.status, code=reply.code)
                return
            self._note("seen", id=request_id, state=reply.body["state"])
            if reply.body["state"] in TERMINAL:
                self._note("ok", id=request_id, **ended(reply.body))
                return

    async def _follow_cut(self, request_id: str) -> None:
        await self._follow(Reading(self._load.history, self._op.number, request_id), cuts=True)

    async def _follow(self, reading: Reading, cuts: bool = False) -> None:
        """Read events, on whichever replica, from where the last connection ended."""
        while not self._overdue() and not reading.state:
            most = self._dice.choice((None, 3, 10)) if cuts else None
            path, headers = f"/v1/requests/{reading.request_id}/events", {}
            if reading.have:
                headers["Last-Event-ID"] = str(reading.have)
            try:
                async with self._request("GET", path, headers=headers) as answer:
                    if answer.status in (404, 410):
                        self._note("info", why="missing", status=answer.status)
                        return
                    if answer.status == 200:
                        await reading.read(answer, most)
            except BROKEN as error:
                self._note("trouble", why=type(error).__name__)
            if not reading.state:
                self._note("break", n=reading.have)
                await self._pause()
        if reading.state:
            self._finished(reading)
        else:
            self._note("info", why="gave up")

    def _finished(self, reading: Reading) -> None:
        self._note("seen", id=reading.request_id, state=reading.state)
        self._note("ok", id=reading.request_id, state=reading.state, text=reading.text)

    async def _cancel(self, request_id: str) -> None:
        await asyncio.sleep(self._dice.uniform(0, 0.5))
        reply = await self._until_answered("DELETE", f"/v1/requests/{request_id}")
        if reply is None:
            return
        if reply.status != 200:
            self._note("info", why="missing", status=reply.status)
            return
        state = reply.body["state"]
        self._note("seen", id=request_id, state=state)
        self._note("ok", id=request_id, state=state, text=None)

    async def _hang_up(self) -> None:
        try:
            async with asyncio.timeout(self._dice.uniform(0.02, 1.0)), self._post() as answer:
                await answer.read()
        except BROKEN:
            pass  # that is the point
        self._note("info", why="hung up")
