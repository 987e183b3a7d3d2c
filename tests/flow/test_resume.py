"""Streams go on when workers, engines and producers die: the stock SDK reads one clean text."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI
from tests.flow.engines import EngineUnderTest
from tests.flow.identities import assert_identities
from tests.flow.processes import until
from tests.flow.system import System, running

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
STREAMS = 6
QUESTIONS = [f"line {number}" for number in (96, 131, 121, 178, 180, 35)]
"""The simulator answers these with characters of several bytes."""


@pytest.fixture
async def system(tmp_path: Path, engine_urls: list[EngineUnderTest]) -> AsyncIterator[System]:
    """Two workers of which each holds half of the streams."""
    slots, urls = STREAMS // len(engine_urls), [one.url for one in engine_urls]
    async with running(tmp_path, urls, settings=engine_urls[0].settings, slots=slots) as system:
        await system.know(engine_urls[0].model)
        yield system


@dataclass(slots=True)
class Read:
    """What one client has read of its stream."""

    text: str = ""
    roles: int = 0
    ids: frozenset[tuple[str, int]] = frozenset()
    finish: str | None = None
    usage: tuple[int, int] | None = None

    def note(self, chunk: Any) -> None:
        self.ids |= {(chunk.id, chunk.created)}
        if chunk.usage is not None:
            self.usage = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
        for choice in chunk.choices:
            self.text += choice.delta.content or ""
            self.roles += choice.delta.role is not None
            self.finish = choice.finish_reason or self.finish


def tokens_of(engine: EngineUnderTest) -> int:
    return 120 if engine.kind == "sim" else 900


def asked(engine: EngineUnderTest, question: str) -> dict[str, Any]:
    return {
        "model": engine.model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens_of(engine),
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }


async def undisturbed(engine: EngineUnderTest, question: str) -> Read:
    """The engine's own answer, not streamed."""
    async with AsyncOpenAI(api_key="-", base_url=f"{engine.url}/v1") as client:
        answer = await client.chat.completions.create(**asked(engine, question))
    choice, usage = answer.choices[0], answer.usage
    told = usage and (usage.prompt_tokens, usage.completion_tokens)
    return Read(choice.message.content or "", 1, frozenset(), choice.finish_reason, told)


async def read(client: AsyncOpenAI, engine: EngineUnderTest, question: str, seen: Read) -> None:
    """One stream, as the SDK is shipped: an error event is an exception."""
    stream = await client.chat.completions.create(
        **asked(engine, question), stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        seen.note(chunk)


class Clients:
    """Several clients that read streams through both producers."""

    def __init__(self, system: System, engine: EngineUnderTest, expected: list[Read]) -> None:
        self._system, self._expected = system, expected
        # To make an SDK's client takes so long that a real engine would be through meanwhile.
        self._sdks = [AsyncOpenAI(api_key="-", base_url=f"{url}/v1") for url in system.producers]
        self.seen = [Read() for _ in QUESTIONS]
        self._tasks = [
            asyncio.create_task(read(self._sdks[n % 2], engine, question, self.seen[n]))
            for n, question in enumerate(QUESTIONS)
        ]

    @classmethod
    async def start(cls, system: System, engine: EngineUnderTest) -> Clients:
        """Ask the engine itself first, then through Forebay."""
        answers = [undisturbed(engine, question) for question in QUESTIONS]
        return cls(system, engine, await asyncio.gather(*answers))

    async def until_read(self, letters: int) -> None:
        """Wait until one has read so much.

        A real engine is far ahead of its readers then, on a quick day at the end; that streams on
        it are cut is judged elsewhere, by more of them.
        """

        async def one_read() -> bool:
            return any(len(one.text) >= letters for one in self.seen)

        await until(one_read, 60, "a client reads", every_s=0.005)

    async def judge(self) -> None:
        """Each has read exactly what an undisturbed engine says, as one stream."""
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*[sdk.close() for sdk in self._sdks])
        for expected, one in zip(self._expected, self.seen, strict=True):
            assert one.text == expected.text
            assert (one.roles, one.finish, one.usage) == (1, "length", expected.usage)
            assert len(one.ids) == 1
        ledger = await assert_identities(self._system)
        assert (ledger["accepted"], ledger["done"]) == (STREAMS, STREAMS)

    async def requests(self) -> list[Any]:
        """The records of all streams."""
        ids = [next(iter(one.ids))[0].removeprefix("chatcmpl-") for one in self.seen]
        rows = [await self._system.intake.show(request_id) for request_id in ids]
        return [row for row in rows if row is not None]


async def test_streams_go_on_when_their_worker_is_killed(
    system: System, engine_urls: list[EngineUnderTest]
) -> None:
    """SIGKILL: the other worker goes on within a lease; the dead one's are counted as crashed."""
    clients = await Clients.start(system, engine_urls[0])
    await clients.until_read(20)
    system.working[0].kill()
    await clients.judge()
    rows = await clients.requests()
    again = [row for row in rows if row.takes > 1]
    assert again or engine_urls[0].kind == "vllm", "none was cut"
    assert all(row.crashes == row.takes - 1 for row in rows)


async def test_streams_go_on_when_their_engine_is_killed(
    system: System, engine_urls: list[EngineUnderTest]
) -> None:
    """Its worker lives and gives them back; the other engine goes on."""
    clients = await Clients.start(system, engine_urls[0])
    await clients.until_read(20)
    engine_urls[0].kill()
    await clients.judge()
    cut = any(row.crashes for row in await clients.requests())
    assert cut or engine_urls[0].kind == "vllm", "none was cut"


@pytest.mark.parametrize("engine_pair", ["sim"], indirect=True)
async def test_streams_go_on_over_a_drain(
    system: System, engine_urls: list[EngineUnderTest]
) -> None:
    """SIGTERM, then again: what runs is handed over at once, and nobody is blamed."""
    clients = await Clients.start(system, engine_urls[0])
    await clients.until_read(20)
    drained = system.working[0]
    drained.send(signal.SIGTERM)
    drained.send(signal.SIGINT)
    await clients.judge()
    rows = await clients.requests()
    assert max(row.takes for row in rows) > 1
    assert {(row.crashes, row.attempts) for row in rows} == {(0, 0)}
    assert await asyncio.to_thread(drained.stop) == 0


@pytest.mark.parametrize("engine_pair", ["sim"], indirect=True)
async def test_a_stream_without_an_engine_ends_with_one_error(
    tmp_path: Path, engine_urls: list[EngineUnderTest]
) -> None:
    """The only engine dies for good: one error event at the deadline, and the stream closes."""
    engine = engine_urls[0]
    async with running(tmp_path, [engine.url], producers=1) as one:
        await one.know(engine.model)
        body = asked(engine, QUESTIONS[0])
        body |= body.pop("extra_body") | {"stream": True}
        headers = {"X-Request-Timeout": "4"}
        events: list[bytes] = []
        async with (
            aiohttp.ClientSession() as client,
            client.post(one.producers[0] + CHAT, json=body, headers=headers) as answer,
        ):
            async for line in answer.content:
                if line.startswith(b"data: "):
                    events.append(line[6:].strip())
                if len(events) == 5:
                    engine.kill()
        errors = [event for event in events if b'"error"' in event]
        assert errors == events[-1:]
        assert json.loads(errors[0])["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize("engine_pair", ["sim"], indirect=True)
async def test_a_producers_client_reads_on_elsewhere(
    system: System, engine_urls: list[EngineUnderTest]
) -> None:
    """SIGKILL of the replica: any other one gives the rest after `Last-Event-ID`, nothing twice."""
    engine = engine_urls[0]
    seen, count, request_id = Read(), 0, ""
    body = asked(engine, QUESTIONS[0])
    body |= body.pop("extra_body") | {"stream": True}
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientError):
            async with client.post(system.producers[0] + CHAT, json=body) as answer:
                request_id = answer.headers["x-request-id"]
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        note(seen, line)
                        count += 1
                    if count == 10:
                        system.serving[0].kill()
        path = f"/v1/requests/{request_id}/events"
        headers = {"Last-Event-ID": str(count)}
        async with client.get(system.producers[1] + path, headers=headers) as answer:
            assert answer.status == 200
            kind = b""
            async for line in answer.content:
                if line.startswith(b"event: "):
                    kind = line[7:].strip()
                elif line.startswith(b"data: ") and not kind:
                    note(seen, line)
    assert kind == b"end"
    expected = await undisturbed(engine, QUESTIONS[0])
    assert (seen.text, seen.roles, seen.finish) == (expected.text, 1, expected.finish)


def note(seen: Read, line: bytes) -> None:
    chunk = json.loads(line[6:])
    for choice in chunk["choices"]:
        seen.text += choice["delta"].get("content") or ""
        seen.roles += "role" in choice["delta"]
        seen.finish = choice["finish_reason"] or seen.finish


async def test_what_cannot_go_on_is_an_error_to_the_sdk(
    system: System, engine_urls: list[EngineUnderTest]
) -> None:
    """A guided stream is never spliced: the SDK raises, and what it read is one beginning."""
    engine = engine_urls[0]
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = asked(engine, QUESTIONS[0]) | {"response_format": form}
    if engine.kind == "vllm":
        body["max_tokens"] = 1_500  # some 14 s: fewer may be through before it is killed
    async with AsyncOpenAI(api_key="-", base_url=f"{engine.url}/v1") as client:
        whole = await client.chat.completions.create(**body)
    assert whole.choices[0].finish_reason == "length"
    text = ""
    async with AsyncOpenAI(api_key="-", base_url=f"{system.producers[0]}/v1") as client:
        stream = await client.chat.completions.create(**body, stream=True)
        with pytest.raises(openai.APIError, match="interrupted"):
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                if text:
                    kill_all(engine_urls)
    assert (whole.choices[0].message.content or "").startswith(text)


def kill_all(engines: list[EngineUnderTest]) -> None:
    """At once: one that runs on while the other dies would have the machine to itself."""
    for one in engines:
        one.server.send(signal.SIGKILL)
    for one in engines:
        one.kill()
