"""The adapter to OpenAI-compatible servers, against bytes written down and real connections."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import aclosing

import pytest
from tests.worker.engine.wire import (
    Script,
    call,
    collect,
    engine_at,
    raw,
    reply,
    silence,
    stream,
    then_close,
    wire,
)

from forebay_worker.engine import (
    Answer,
    Chunk,
    EngineBroken,
    EngineBusy,
    EngineError,
    EngineFailed,
    EngineRejected,
    EngineUnreachable,
    Load,
)
from forebay_worker.engine.openai import HEALTH_TIMEOUT_S, OpenAIEngine

pytestmark = pytest.mark.anyio

VLLM_METRICS = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
vllm:num_preemptions_total{engine="0",model_name="tiny"} 5.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.79e+09
vllm:cache_config_info{block_size="32",engine="0",kv_cache_size_tokens="32768"} 1.0
"""
OLD_METRICS = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'


async def test_an_answer_passes_through_as_it_is() -> None:
    """Status, content type and bytes of an answer are the engine's own."""
    body = '{"text": "é  日本",\n "x": 1}'.encode()
    script = reply(body, "201 Created", "application/x-own")
    async with wire(script) as seen, engine_at(seen.url) as engine:
        assert await collect(engine, call()) == [Answer(201, "application/x-own", body)]


async def test_a_call_arrives_as_it_was_given() -> None:
    """Path, body and headers reach the engine unchanged, with the id and the key."""
    body = b'{"model": "m", "unknown":[1, 2]}'
    async with wire(reply(b"{}")) as seen, engine_at(seen.url + "/v1/", "secret") as engine:
        await collect(engine, call(body=body, headers={"traceparent": "00-ab-cd-01"}))
    head, sent = seen.requests[0]
    lines = head.lower().split(b"\r\n")
    assert sent == body
    assert lines[0] == b"post /v1/chat/completions http/1.1"
    assert {
        b"x-request-id: r-1",
        b"traceparent: 00-ab-cd-01",
        b"authorization: bearer secret",
        b"content-type: application/json",
    } <= set(lines)


async def test_a_stream_comes_as_chunks_without_done() -> None:
    """Each event's data is a chunk; comments and `[DONE]` are not."""
    parts = (b'data: {"a":1}\n\ndata: {"b"', b":2}\n\n: ping\n\n", b"data: [DONE]\n\n")
    async with wire(stream(*parts)) as seen, engine_at(seen.url) as engine:
        got = await collect(engine, call(stream=True))
    assert got == [Chunk(b'{"a":1}'), Chunk(b'{"b":2}')]


async def test_an_event_of_a_megabyte_comes_whole() -> None:
    """No event is too long for a stream."""
    big = b'{"x":"' + b"y" * (1 << 20) + b'"}'
    parts = (b"data: " + big, b"\n\ndata: [DONE]\n\n")
    async with wire(stream(*parts)) as seen, engine_at(seen.url) as engine:
        assert await collect(engine, call(stream=True)) == [Chunk(big)]


async def test_a_stream_that_is_answered_whole_is_an_answer() -> None:
    """An engine that cannot stream is still heard."""
    async with wire(reply(b'{"choices":[]}')) as seen, engine_at(seen.url) as engine:
        got = await collect(engine, call(stream=True))
    assert got == [Answer(200, "application/json", b'{"choices":[]}')]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("400 Bad Request", EngineRejected),
        ("401 Unauthorized", EngineRejected),
        ("404 Not Found", EngineRejected),
        ("429 Too Many Requests", EngineRejected),
        ("307 Temporary Redirect", EngineFailed),
        ("500 Internal Server Error", EngineFailed),
        ("502 Bad Gateway", EngineFailed),
    ],
)
@pytest.mark.parametrize("streaming", [True, False])
async def test_an_error_status_keeps_its_answer(
    status: str, kind: type[EngineRejected | EngineFailed], streaming: bool
) -> None:
    """4xx is the client's fault and 5xx the engine's; the body is kept, but not shown."""
    body = b'{"error":{"message":"about your prompt"}}'
    async with wire(reply(body, status)) as seen, engine_at(seen.url) as engine:
        with pytest.raises(kind) as caught:
            await collect(engine, call(streaming))
    error = caught.value
    assert (error.status, error.content_type, error.body) == (
        int(status[:3]),
        "application/json",
        body,
    )
    assert "prompt" not in str(error)


async def test_a_redirect_is_not_followed() -> None:
    """A prompt goes to the engine it was meant for and nowhere else."""
    moved = raw(b"HTTP/1.1 307 Moved\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n")
    async with wire(moved) as seen, engine_at(seen.url) as engine:
        with pytest.raises(EngineFailed):
            await collect(engine, call())
    assert len(seen.requests) == 1


async def test_503_is_busy() -> None:
    """The engine's own admission is no failure of the request."""
    async with wire(reply(b"{}", "503 Service Unavailable")) as seen, engine_at(seen.url) as engine:
        with pytest.raises(EngineBusy):
            await collect(engine, call())


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (b'{"error":{"message":"died","code":500}}', 500),
        (b'{ "id": "x", "error": {"message": "odd", "code": 400}}', 400),
        (b'{"error":"no code"}', 500),
        (b'{"error":{"code":"overloaded"}}', 500),
    ],
)
async def test_an_error_event_under_200_is_a_failure(event: bytes, status: int) -> None:
    """An engine that dies in mid-stream says so in an event, then `[DONE]`; chunks stay valid."""
    parts = (b'data: {"a":1}\n\n', b"data: " + event + b"\n\ndata: [DONE]\n\n")
    got = []
    async with wire(stream(*parts)) as seen, engine_at(seen.url) as engine:
        with pytest.raises(EngineFailed) as caught:
            async for chunk in engine.generate(call(stream=True)):
                got.append(chunk)
    assert got == [Chunk(b'{"a":1}')]
    assert (caught.value.status, caught.value.body) == (status, event)


async def test_a_chunk_that_speaks_of_an_error_is_no_failure() -> None:
    """Only the event's own `error` field counts, and only if it says something."""
    events = [
        b'{"delta":{"content":"error"}}',
        b'{"delta":{"content":"\\"error\\": 1"}}',
        b'{"error":null}',
        b'{"delta":{"error":1}}',
    ]
    body = b"".join(b"data: " + event + b"\n\n" for event in [*events, b"[DONE]"])
    async with wire(stream(body)) as seen, engine_at(seen.url) as engine:
        assert await collect(engine, call(stream=True)) == [Chunk(event) for event in events]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(stream(b'data: {"a":1}\n\n'), id="no [DONE]"),
        pytest.param(stream(b'data: {"error":{broken\n\n'), id="an error event that is no JSON"),
        pytest.param(then_close(stream(b'data: {"a":1}\n\n', end=False)), id="cut between events"),
        pytest.param(then_close(raw(HEAD + b"{")), id="cut in a body"),
        pytest.param(then_close(silence), id="cut before an answer"),
        pytest.param(raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), id="not HTTP"),
    ],
)
async def test_what_breaks_after_it_was_accepted_is_broken(script: Script) -> None:
    """No answer that is cut short passes for one that is whole."""
    async with wire(script) as seen, engine_at(seen.url) as engine:
        with pytest.raises(EngineBroken):
            await collect(engine, call(stream=True))


async def test_no_connection_is_unreachable() -> None:
    """A port where nobody listens has accepted nothing."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with engine_at(url) as engine:
        for asked in (collect(engine, call()), engine.load(), engine.models()):
            with pytest.raises(EngineUnreachable):
                await asked
        assert await engine.health() is False


async def test_a_host_that_never_answers_is_unreachable() -> None:
    """Connecting takes no longer than it may."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        address = deaf.getsockname()
        with socket.create_connection(address):  # fills the queue of one
            engine = OpenAIEngine(f"http://127.0.0.1:{address[1]}", connect_timeout_s=0.1)
            await engine.start()
            with pytest.raises(EngineUnreachable):
                await collect(engine, call())
            await engine.close()


async def test_closing_a_stream_closes_its_connection_at_once() -> None:
    """A client that hung up uses no engine any more, here in mid-stream."""
    script = stream(b'data: {"a":1}\n\n', end=False)
    async with wire(script) as seen, engine_at(seen.url) as engine:
        async with aclosing(engine.generate(call(stream=True))) as events:
            assert await anext(events) == Chunk(b'{"a":1}')
            assert not seen.hung_up.is_set()
        await asyncio.wait_for(seen.hung_up.wait(), 1)


@pytest.mark.parametrize("script", [silence, raw(HEAD + b"{")])
async def test_cancelling_a_call_closes_its_connection_at_once(script: Script) -> None:
    """Also where no answer has begun, or only its head came."""
    async with wire(script) as seen, engine_at(seen.url) as engine:
        running = asyncio.ensure_future(collect(engine, call()))
        await seen.received.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(seen.hung_up.wait(), 1)


async def test_closing_the_engine_breaks_what_runs() -> None:
    """Nobody waits for ever on an adapter that was closed."""
    async with wire(silence) as seen, engine_at(seen.url) as engine:
        running = asyncio.ensure_future(collect(engine, call()))
        await seen.received.wait()
        await engine.close()
        with pytest.raises(EngineBroken):
            await asyncio.wait_for(running, 1)
        with pytest.raises(EngineUnreachable):
            await collect(engine, call())


async def slow_to_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A stream whose body ends a little after `[DONE]`."""
    await stream(b"data: {}\n\n", b"data: [DONE]\n\n", end=False)(reader, writer)
    await asyncio.sleep(0.02)
    writer.write(b"0\r\n\r\n")


@pytest.mark.parametrize("script", [slow_to_end, reply(b"{}")], ids=["stream", "whole"])
async def test_connections_serve_again(script: Script) -> None:
    """Calls in a row share one connection, streams too."""
    async with wire(script) as seen, engine_at(seen.url) as engine:
        for _ in range(3):
            assert len(await collect(engine, call(stream=True))) == 1
        assert (seen.connections, len(seen.requests)) == (1, 3)


async def test_a_body_left_open_after_done_holds_nobody_up() -> None:
    """`[DONE]` ends the call, and the connection if the server does not end the body."""
    script = stream(b"data: {}\n\ndata: [DONE]\n\n", end=False)
    async with wire(script) as seen, engine_at(seen.url) as engine:
        got = await asyncio.wait_for(collect(engine, call(stream=True)), 2)
        await asyncio.wait_for(seen.hung_up.wait(), 1)
    assert got == [Chunk(b"{}")]


@pytest.mark.parametrize(
    ("script", "load"),
    [
        (reply(VLLM_METRICS, content_type="text/plain"), Load(7, 2, 0.5, 5, 32_768, None)),
        (reply(OLD_METRICS, content_type="text/plain"), Load(0, 0, 0.0, 0, 1_600, None)),
        (reply(b"http_requests_total 5\n"), Load(0, 0, 0.0, 0, None, None)),
        (reply(b"no such page", "404 Not Found"), Load(0, 0, 0.0, 0, None, None)),
    ],
    ids=["vllm", "older vllm", "another engine", "no metrics"],
)
async def test_load_is_read_from_metrics(script: Script, load: Load) -> None:
    """Replicas are summed, their usage averaged; what an engine does not say is None."""
    async with wire(script) as seen, engine_at(seen.url) as engine:
        assert await engine.load() == load


@pytest.mark.parametrize(("status", "well"), [("200 OK", True), ("503 Unavailable", False)])
async def test_health_is_what_the_engine_says(status: str, well: bool) -> None:
    """200 on /health is well, all else is not."""
    async with wire(reply(b"", status)) as seen, engine_at(seen.url) as engine:
        assert await engine.health() is well
    assert seen.requests[0][0].startswith(b"GET /health ")


async def test_an_engine_that_hangs_is_not_healthy() -> None:
    """Health has its own time limit and lets the connection go."""
    async with wire(silence) as seen, engine_at(seen.url) as engine:
        assert await asyncio.wait_for(engine.health(), HEALTH_TIMEOUT_S + 1) is False
        await asyncio.wait_for(seen.hung_up.wait(), 1)


async def test_models_are_their_ids() -> None:
    """The order is the engine's."""
    page = json.dumps({"object": "list", "data": [{"id": "b"}, {"id": "a"}]}).encode()
    async with wire(reply(page)) as seen, engine_at(seen.url) as engine:
        assert await engine.models() == ["b", "a"]


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (reply(b"<html>"), EngineFailed),
        (reply(b'{"data":[{"name":"x"}]}'), EngineFailed),
        (reply(b"[]"), EngineFailed),
        (reply(b"{}", "401 Unauthorized"), EngineRejected),
        (reply(b"{}", "503 Unavailable"), EngineBusy),
    ],
)
async def test_models_that_cannot_be_read_are_an_error(
    script: Script, kind: type[EngineError]
) -> None:
    """An answer that is no list of models is a failure, not an empty list."""
    async with wire(script) as seen, engine_at(seen.url) as engine:
        with pytest.raises(kind):
            await engine.models()


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "/v1"])
def test_a_base_url_must_be_http(url: str) -> None:
    """A wrong address is refused before anything runs."""
    with pytest.raises(ValueError, match="base_url"):
        OpenAIEngine(url)
