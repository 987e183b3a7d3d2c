"""The stock SDK, unchanged but for `base_url`, gets the answers that the engine itself gives."""

from __future__ import annotations

import json
import re
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from tests.flow.engines import EngineUnderTest
from tests.flow.system import System, running

pytestmark = pytest.mark.anyio

MESSAGES: Any = [{"role": "user", "content": "Tell me about queues."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "Weather of a city.", "parameters": SCHEMA},
}
BODIES: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 24},
    "two": {"max_tokens": 12, "n": 2, "temperature": 1},
    "logprobs": {"max_tokens": 6, "logprobs": True, "top_logprobs": 2},
    "vllm fields": {
        "max_tokens": 12,
        "min_tokens": 4,
        "ignore_eos": True,
        "return_token_ids": True,
    },
    "tools": {
        "max_tokens": 64,
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
    },
    "json object": {
        "max_tokens": 64,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "place", "schema": SCHEMA, "strict": True},
        },
    },
}


def body_of(name: str, model: str) -> dict[str, Any]:
    return {"model": model, "messages": MESSAGES, "temperature": 0, "seed": 1, **BODIES[name]}


def settled(raw: bytes) -> bytes:
    """An answer without its id and time."""
    raw = re.sub(rb'"id":\s*"[^"]*"', b'"id":""', raw)
    return re.sub(rb'"created":\s*\d+', b'"created":0', raw)


async def post(url: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as client, client.post(url + path, json=body) as answer:
        return answer.status, await answer.read()


async def streamed(url: str, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream; asserts that it ends with [DONE]."""
    status, raw = await post(url, path, body | {"stream": True})
    assert status == 200, raw
    events = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    return [json.loads(event) for event in events[:-1]]


def told(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a stream says, however its chunks were cut: keys seen, text, ends, ids, usage."""
    value: dict[str, Any] = {"text": {}, "end": {}, "tools": {}, "usage": [], "keys": set()}
    for event in events:
        value["keys"] |= set(event)
        if event.get("usage") is not None and not event["choices"]:
            value["usage"].append(event["usage"])
        for choice in event["choices"]:
            at, delta = choice["index"], choice.get("delta", {})
            text = delta.get("content") or choice.get("text") or ""
            value["text"][at] = value["text"].get(at, "") + text
            for call in delta.get("tool_calls") or []:
                part = call["function"].get("arguments") or ""
                value["tools"][at] = value["tools"].get(at, "") + part
            if choice.get("finish_reason"):
                value["end"][at] = choice["finish_reason"]
    return value


@pytest.mark.parametrize("name", BODIES)
async def test_answer_is_the_engines_byte_for_byte(
    shared_system: System, engine_urls: list[EngineUnderTest], model: str, name: str
) -> None:
    """Not streamed, through the queue and directly: the same bytes but for id and time."""
    body = body_of(name, model)
    direct = await post(engine_urls[0].url, "/v1/chat/completions", body)
    queued = await post(shared_system.producers[0], "/v1/chat/completions", body)
    assert (queued[0], settled(queued[1])) == (direct[0], settled(direct[1]))
    assert queued[0] == 200, queued[1]


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("name", BODIES)
async def test_stream_says_what_the_engine_says(
    shared_system: System, engine_urls: list[EngineUnderTest], model: str, name: str, usage: bool
) -> None:
    """Streamed: the same text, ends and fields; usage exactly where the client asked for it."""
    body = body_of(name, model)
    if usage:
        body["stream_options"] = {"include_usage": True}
    direct = await streamed(engine_urls[0].url, "/v1/chat/completions", body)
    queued = await streamed(shared_system.producers[1], "/v1/chat/completions", body)
    assert told(queued) == told(direct)
    assert len({event["id"] for event in queued}) == 1
    assert bool(told(queued)["usage"]) == usage


async def test_completions_streamed_and_not(
    shared_system: System, engine_urls: list[EngineUnderTest], model: str
) -> None:
    body = {"model": model, "prompt": "Once upon", "max_tokens": 16, "temperature": 0}
    direct = await post(engine_urls[1].url, "/v1/completions", body)
    queued = await post(shared_system.producers[0], "/v1/completions", body)
    assert settled(queued[1]) == settled(direct[1])
    texts = [
        told(await streamed(url, "/v1/completions", body))
        for url in (engine_urls[1].url, shared_system.producers[0])
    ]
    assert texts[0] == texts[1]


async def test_stock_clients_answer_alike(
    shared_system: System, engine_urls: list[EngineUnderTest], model: str
) -> None:
    """Async client, streaming by iteration and whole, models list, unknown fields by extra_body."""
    async with AsyncOpenAI(base_url=shared_system.producers[0] + "/v1", api_key="none") as client:
        assert [one.id async for one in client.models.list()] == [model]
        asked: Any = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 16}
        whole = await client.chat.completions.create(
            **asked, extra_body={"ignore_eos": True, "x_unknown": [1]}
        )
        stream = await client.chat.completions.create(
            **asked, stream=True, extra_body={"ignore_eos": True}
        )
        text = "".join([part.choices[0].delta.content or "" async for part in stream])
    assert whole.choices[0].message.content == text != ""
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16


def ask_in_thread(url: str, model: str) -> str:
    with OpenAI(base_url=url + "/v1", api_key="none") as client:
        answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=4)
        with client.chat.completions.stream(model=model, messages=MESSAGES, max_tokens=4) as stream:
            stream.until_done()
        return answer.choices[0].finish_reason


async def test_blocking_client(shared_system: System, model: str) -> None:
    from anyio.to_thread import run_sync

    assert await run_sync(ask_in_thread, shared_system.producers[0], model) == "length"


async def test_errors_of_the_engine_are_the_sdks_own(shared_system: System, model: str) -> None:
    """A 400 of the engine and a 404 of ours arrive as the SDK's exceptions, at once."""
    async with AsyncOpenAI(base_url=shared_system.producers[0] + "/v1", api_key="none") as client:
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(
                model=model, messages=MESSAGES, max_tokens=10_000_000
            )
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nobody-serves-this", messages=MESSAGES)
        assert missing.value.code == "model_not_found"


async def test_embeddings(
    embedding_engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Through the SDK (base64 on the wire), the vectors that the engine gives."""
    texts = ["a queue", "a turbine"]
    folder = tmp_path_factory.mktemp("embeddings")
    async with running(folder, [embedding_engine.url], producers=1) as system:
        await system.know(embedding_engine.model)
        got = []
        for url in (embedding_engine.url, system.producers[0]):
            async with AsyncOpenAI(base_url=url + "/v1", api_key="none") as client:
                answer = await client.embeddings.create(model=embedding_engine.model, input=texts)
                got.append([row.embedding for row in answer.data])
    assert got[0] == got[1]
    assert len(got[0]) == 2
