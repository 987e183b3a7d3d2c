"""Streams: when the status goes out, signs of life, ends that cannot be taken for success."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx
import openai
import pytest
from tests.producer.running import BODY, CHAT, QUICK, Running, serving
from tests.producer.scripted import ScriptedWorker, working
from tests.producer.scripts import DONE, answer, chunk, end_with, gated, stay

from forebay_shared.calls import Grant
from forebay_shared.records import Result

pytestmark = pytest.mark.anyio
STREAM = {**BODY, "stream": True}
SOON = replace(QUICK, status_after_s=0.2, comment_every_s=0.2)
ENGINE_ERROR = b'{"error": {"message": "engine died", "type": "server_error", "code": 500}}'


async def events_of(one: Running) -> list[bytes]:
    """The data of the stream's events."""
    raw = (await one.http.post(CHAT, json=STREAM)).content
    return [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]


async def test_the_status_waits_for_the_first_event(redis_url: str) -> None:
    gate = asyncio.Event()
    async with serving(redis_url) as one, working(redis_url, gated(gate)) as worker:
        opening = asyncio.create_task(one.sdk.chat.completions.create(**STREAM))
        await worker.wait_granted()
        assert not opening.done()
        gate.set()
        assert [event async for event in await opening]


async def test_a_silent_stream_gets_its_status_and_comments_of_one_line(redis_url: str) -> None:
    gate = asyncio.Event()
    async with (
        serving(redis_url, timings=SOON) as one,
        working(redis_url, gated(gate)),
        one.http.stream("POST", CHAT, json=STREAM) as reply,
    ):
        parts = reply.aiter_raw()
        assert [await anext(parts), await anext(parts)] == [b": waiting\n", b": waiting\n"]
        gate.set()
        rest = b"".join([part async for part in parts])
    assert rest.lstrip(b": waiting\n").startswith(b"data: ")
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_the_sdk_reads_over_comments(redis_url: str) -> None:
    async def slow(worker: ScriptedWorker, grant: Grant) -> None:
        await asyncio.sleep(0.5)
        await worker.emit(grant, 0, chunk("a"))
        await asyncio.sleep(0.5)
        await worker.finish(grant, DONE, 1, chunk("b"))

    async with serving(redis_url, timings=SOON) as one, working(redis_url, slow):
        stream = await one.sdk.chat.completions.create(**STREAM)
        texts = [event.choices[0].delta.content async for event in stream]
    assert texts == ["a", "b"]


async def test_an_impatient_sdk_reads_a_stream_that_lasts_longer(redis_url: str) -> None:
    """Its time-out is that between two bytes: signs of life come within it, queued or running."""

    async def slow(worker: ScriptedWorker, grant: Grant) -> None:
        for n in range(2):
            await asyncio.sleep(0.9)
            await worker.emit(grant, n, chunk("a"))
        await worker.finish(grant, DONE, 2)

    async with serving(redis_url) as one, working(redis_url, slow):
        hasty = one.sdk.with_options(timeout=0.8)
        stream = await hasty.chat.completions.create(**STREAM)
        assert len([event async for event in stream]) == 2


async def test_an_error_after_the_first_event_is_one_event_and_no_done(redis_url: str) -> None:
    failed = end_with(Result("failed", 500, body=ENGINE_ERROR), chunk("a"))
    async with serving(redis_url) as one, working(redis_url, failed):
        assert await events_of(one) == [chunk("a"), ENGINE_ERROR]
        stream = await one.sdk.chat.completions.create(**STREAM)
        with pytest.raises(openai.APIError, match="engine died"):
            [event async for event in stream]


async def test_an_error_after_the_status_is_an_event_too(redis_url: str) -> None:
    gate = asyncio.Event()
    failing = gated(gate, end_with(Result("failed", 400, body=ENGINE_ERROR)))
    async with (
        serving(redis_url, timings=SOON) as one,
        working(redis_url, failing),
        one.http.stream("POST", CHAT, json=STREAM) as reply,
    ):
        assert reply.status_code == 200
        gate.set()
        raw = b"".join([part async for part in reply.aiter_raw()])
    assert raw.endswith(b"data: " + ENGINE_ERROR + b"\n\n")


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b'{"detail": "x"}', b""])
async def test_an_error_that_is_none_of_openais_still_reads_as_one(
    redis_url: str, body: bytes
) -> None:
    failed = end_with(Result("failed", 502, "text/html", body=body), chunk("a"))
    async with serving(redis_url) as one, working(redis_url, failed):
        first, last = await events_of(one)
    assert (first, json.loads(last)["error"]["code"]) == (chunk("a"), "engine_failed")


async def test_an_interrupted_stream_says_so(redis_url: str) -> None:
    broken = end_with(Result("failed", reason="interrupted"), chunk("a"))
    async with serving(redis_url) as one, working(redis_url, broken):
        assert json.loads((await events_of(one))[-1])["error"]["code"] == "stream_interrupted"


async def test_a_deadline_in_the_middle_is_an_error_event(redis_url: str) -> None:
    async def never_done(worker: ScriptedWorker, grant: Grant) -> None:
        await worker.emit(grant, 0, chunk("a"))

    async with serving(redis_url) as one, working(redis_url, never_done) as worker:
        one.http.headers["x-request-timeout"] = "0.5"
        first, last = await events_of(one)
        await worker.wait_order("cancel")
    assert (first, json.loads(last)["error"]["code"]) == (chunk("a"), "deadline_exceeded")


async def test_a_deadline_before_the_first_event_is_504_and_not_repeated(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, stay):
        soon = {"x-request-timeout": "0.3"}
        asks = (one.http.post(CHAT, json=body, headers=soon) for body in (BODY, STREAM))
        for reply in await asyncio.gather(*asks):
            assert reply.status_code == 504
            assert reply.headers["x-should-retry"] == "false"
            assert reply.json()["error"]["code"] == "deadline_exceeded"


async def test_data_of_several_lines_stays_one_event(redis_url: str) -> None:
    pretty = b'{\n "a": 1\n}'
    async with serving(redis_url) as one, working(redis_url, end_with(DONE, pretty)):
        raw = (await one.http.post(CHAT, json=STREAM)).content
    assert raw == b'data: {\ndata:  "a": 1\ndata: }\n\ndata: [DONE]\n\n'


async def test_many_streams_at_once_are_each_whole_and_in_order(redis_url: str) -> None:
    async def count(worker: ScriptedWorker, grant: Grant) -> None:
        for n in range(20):
            assert await worker.emit(grant, n, b"%d" % n) == "ok"
        await worker.finish(grant, DONE, 20)

    async with serving(redis_url) as one, working(redis_url, count):
        streams = await asyncio.gather(*(events_of(one) for _ in range(30)))
    assert streams == [[b"%d" % n for n in range(20)] + [b"[DONE]"]] * 30


async def test_a_slow_reader_loses_nothing_and_holds_little(redis_url: str) -> None:
    """Chunks wait in Redis and not in the producer; other readers go on meanwhile."""
    size, count = 100_000, 150  # more than the sockets' buffers take

    async def flood(worker: ScriptedWorker, grant: Grant) -> None:
        for n in range(count):
            await worker.emit(grant, n, b"%03d" % n + b"x" * size)
        await worker.finish(grant, DONE, count)
        ended.set()

    ended = asyncio.Event()
    async with (
        serving(redis_url) as one,
        working(redis_url, flood) as worker,
        one.http.stream("POST", CHAT, json=STREAM) as reply,
    ):
        worker.script = answer
        await ended.wait()
        assert len(await events_of(one)) == 4
        inbox = one.producer.replica.pools["default"].inbox
        (reader,) = inbox.readers()
        assert reader.have < count
        assert reader.buffered < 2_000_000
        async with asyncio.timeout(5):  # not once a second, by the floor
            raw = b"".join([part async for part in reply.aiter_raw()])
    numbers = [int(event[6:9]) for event in raw.split(b"\n\n")[:-2]]
    assert numbers == list(range(count))


async def test_the_deadline_holds_while_redis_is_silent(redis_url: str) -> None:
    """A waiter gives up by itself when even the end of its deadline is not told."""
    quick = replace(QUICK, overdue_s=0.2)
    async with serving(redis_url, timings=quick) as one, working(redis_url, stay):
        one.producer.replica.pools["default"].inbox.ask = lambda reader: None  # type: ignore[method-assign]
        reply = await one.http.post(CHAT, json=BODY, headers={"x-request-timeout": "0.3"})
    assert reply.status_code == 504


async def test_errors_of_the_client_library_do_not_come_from_us(redis_url: str) -> None:
    """The stream's headers: no length, no caching, not buffered by proxies."""
    async with serving(redis_url) as one, working(redis_url, answer):
        reply: httpx.Response = await one.http.post(CHAT, json=STREAM)
    assert "content-length" not in reply.headers
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
