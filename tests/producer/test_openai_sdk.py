"""The official SDK, unchanged, against a producer and a scripted worker on a real server."""

from __future__ import annotations

import asyncio
import gzip
import json

import openai
import pytest
from tests.producer.running import BODY, CHAT, Running, serving
from tests.producer.scripted import ScriptedWorker, working
from tests.producer.scripts import ANSWER, DONE, RAW, answer, chunk, end_with

from forebay_shared.calls import Grant
from forebay_shared.ids import pool_of
from forebay_shared.records import Result

pytestmark = pytest.mark.anyio


async def test_a_chat_completion_comes_back_as_the_engine_gave_it(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer):
        parsed = await one.sdk.chat.completions.create(**BODY)
        assert parsed.choices[0].message.content == "Hello!"
        reply = await one.http.post(CHAT, json=BODY)
    assert reply.status_code == 200
    assert reply.content == RAW
    assert pool_of(reply.headers["x-request-id"]) == "default"
    assert reply.headers["x-forebay-class"] == "normal"
    assert reply.headers["content-type"] == "application/json"


async def test_the_body_reaches_the_worker_as_it_was_sent(redis_url: str) -> None:
    raw = b'{ "model":"m", "messages":[], "top_k": 5.0, "odd": {"a":[1,null]} }'
    async with serving(redis_url) as one, working(redis_url, answer) as worker:
        await one.http.post(CHAT, content=raw, headers={"traceparent": "00-1-2-01"})
    (grant,) = worker.granted
    assert grant.body == raw
    head = json.loads(grant.head)
    assert (head["path"], head["headers"]["traceparent"]) == (CHAT, "00-1-2-01")


async def test_a_stream_is_read_to_its_clean_end(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer):
        stream = await one.sdk.chat.completions.create(**BODY, stream=True)
        texts = [event.choices[0].delta.content async for event in stream]
        raw = (await one.http.post(CHAT, json={**BODY, "stream": True})).content
    assert texts == ["Hel", "lo", "!"]
    assert raw == b"".join(
        b"data: " + event + b"\n\n" for event in (chunk("Hel"), chunk("lo"), chunk("!"), b"[DONE]")
    )


async def test_a_stream_without_any_chunk_is_still_a_stream(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, end_with(DONE)):
        reply = await one.http.post(CHAT, json={**BODY, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.content == b"data: [DONE]\n\n"


async def test_the_service_tier_is_answered_only_where_it_was_asked(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer) as worker:
        parsed = await one.sdk.chat.completions.create(**BODY, service_tier="flex")
        assert parsed.service_tier == "flex"
        stream = await one.sdk.chat.completions.create(**BODY, service_tier="auto", stream=True)
        assert [event.service_tier async for event in stream] == ["default"] * 3
    assert [grant.class_name for grant in worker.granted] == ["low", "normal"]


async def test_all_generating_endpoints_are_queued(redis_url: str) -> None:
    paths = [CHAT, "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score"]
    async with serving(redis_url) as one, working(redis_url, answer) as worker:
        for path in paths:
            assert (await one.http.post(path, json={"model": "m"})).status_code == 200
    assert [json.loads(grant.head)["path"] for grant in worker.granted] == paths


async def test_an_engines_refusal_passes_through(redis_url: str) -> None:
    body = b'{"error": {"message": "too long", "type": "BadRequestError", "code": 400}}'
    async with (
        serving(redis_url) as one,
        working(redis_url, end_with(Result("failed", 400, body=body))),
    ):
        with pytest.raises(openai.BadRequestError, match="too long"):
            await one.sdk.chat.completions.create(**BODY)
        with pytest.raises(openai.BadRequestError, match="too long"):
            await one.sdk.chat.completions.create(**BODY, stream=True)
        reply = await one.http.post(CHAT, json=BODY)
    assert reply.content == body
    assert "x-should-retry" not in reply.headers


@pytest.mark.parametrize(
    ("result", "status", "code", "retried"),
    [
        (Result("failed", 500, body=b'{"error":{"message":"x","code":500}}'), 500, 500, "false"),
        (Result("failed", reason="result_too_large"), 500, "result_too_large", "false"),
        (Result("failed", reason="interrupted"), 502, "stream_interrupted", None),
        (Result("failed"), 502, "engine_failed", "false"),
    ],
)
async def test_failures_say_whether_a_repeat_helps(
    redis_url: str, result: Result, status: int, code: object, retried: str | None
) -> None:
    async with serving(redis_url) as one, working(redis_url, end_with(result)):
        for stream in (False, True):
            reply = await one.http.post(CHAT, json={**BODY, "stream": stream})
            assert reply.status_code == status
            assert reply.json()["error"]["code"] == code
            assert reply.headers.get("x-should-retry") == retried
            assert pool_of(reply.headers["x-request-id"])


async def test_models_are_listed_from_the_registry(redis_url: str) -> None:
    async with working(redis_url, answer, models=("org/big", "m")), serving(redis_url) as one:
        assert [model.id async for model in one.sdk.models.list()] == ["m", "org/big"]
        assert (await one.sdk.models.retrieve("org/big")).owned_by == "forebay"
        with pytest.raises(openai.NotFoundError):
            await one.sdk.models.retrieve("none")


async def test_an_unknown_model_is_not_found_once_a_worker_is_known(redis_url: str) -> None:
    async with working(redis_url, answer), serving(redis_url) as one:
        with pytest.raises(openai.NotFoundError) as caught:
            await one.sdk.chat.completions.create(**{**BODY, "model": "other"})
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_before_any_worker_a_request_waits_for_the_first(redis_url: str) -> None:
    async with serving(redis_url) as one:
        accepted = await one.http.post(CHAT, json=BODY, headers={"prefer": "respond-async"})
        async with working(redis_url, answer):
            shown = await one.http.get(accepted.headers["location"] + "?wait=5")
    assert shown.json()["result"]["body"] == ANSWER


async def test_a_worker_that_came_just_now_is_found(redis_url: str) -> None:
    """The registry is read each second; a model is not denied because of that."""
    async with working(redis_url, answer), serving(redis_url) as one:
        newcomer = ScriptedWorker(redis_url, answer, ("new",))
        await newcomer.start()
        try:
            await one.sdk.chat.completions.create(**{**BODY, "model": "new"})
        finally:
            await newcomer.close()


async def test_gzip_bodies_are_taken(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer) as worker:
        packed = gzip.compress(json.dumps(BODY).encode())
        reply = await one.http.post(CHAT, content=packed, headers={"content-encoding": "gzip"})
    assert reply.status_code == 200
    assert json.loads(worker.granted[0].body) == BODY


async def test_two_replicas_answer_their_own_clients(redis_url: str) -> None:
    """Results are read by id, never popped from a list that two replicas share."""

    async def echo(worker: ScriptedWorker, grant: Grant) -> None:
        await worker.finish(grant, Result("done", 200, body=grant.body))

    async def asked(one: Running, text: str) -> bool:
        body = {"model": "m", "text": text}
        return (await one.http.post(CHAT, json=body)).json() == body

    async with serving(redis_url) as a, serving(redis_url) as b, working(redis_url, echo):
        asks = [asked(one, f"{n} of {one.url}") for n in range(40) for one in (a, b)]
        assert all(await asyncio.gather(*asks))
