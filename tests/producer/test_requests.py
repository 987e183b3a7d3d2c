"""`/v1/requests/{id}`: submitting without waiting, looking, waiting, following, cancelling."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
import redis
from tests.producer.running import BODY, CHAT, QUICK, Running, serving, until
from tests.producer.scripted import working
from tests.producer.scripts import (
    ANSWER,
    DONE,
    answer,
    chunk,
    end_with,
    gated,
    stay,
    wants_stream,
)

from forebay_shared.ids import new_request_id, new_ulid
from forebay_shared.records import Result

pytestmark = pytest.mark.anyio
STREAM = {**BODY, "stream": True}
ASYNC = {"prefer": "respond-async"}


async def submit(one: Running, body: dict[str, Any] = BODY, **headers: str) -> str:
    """Submit without waiting; the path of the request."""
    accepted = await one.http.post(CHAT, json=body, headers={**ASYNC, **headers})
    assert accepted.status_code == 202
    return str(accepted.headers["location"])


def parse_events(raw: str) -> list[dict[str, str]]:
    blocks = [block for block in raw.split("\n\n") if block]
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]


async def test_submitting_answers_at_once_with_the_place(redis_url: str) -> None:
    async with serving(redis_url) as one:
        accepted = await one.http.post(CHAT, json=BODY, headers=ASYNC)
    named = accepted.json()["id"]
    assert accepted.json() == {"id": named, "object": "request", "state": "queued"}
    assert accepted.headers["location"] == f"/v1/requests/{named}"
    assert accepted.headers["x-request-id"] == named
    assert accepted.headers["preference-applied"] == "respond-async"


async def test_waiting_requests_show_rank_and_why_they_wait(redis_url: str) -> None:
    async with serving(redis_url) as one:
        paths = [await submit(one) for _ in range(3)]
        shown = [(await one.http.get(path)).json() for path in paths]
    assert [one_shown["rank"] for one_shown in shown] == [0, 1, 2]
    assert {one_shown["waits_for"] for one_shown in shown} == {"worker"}
    assert [shown[0][name] for name in ("state", "class", "model", "stream", "result")] == [
        "queued",
        "normal",
        "m",
        False,
        None,
    ]


async def test_a_result_is_shown_as_the_engine_wrote_it(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer):
        shown = (await one.http.get(await submit(one) + "?wait=5")).json()
    assert (shown["state"], shown["rank"], shown["waits_for"]) == ("done", None, None)
    assert shown["result"] == {"status": 200, "reason": None, "body": ANSWER}
    assert shown["admitted_at"] <= shown["started_at"] <= shown["ended_at"] <= shown["now"]


async def test_wait_ends_with_the_request_and_not_before(redis_url: str) -> None:
    gate = asyncio.Event()
    async with serving(redis_url) as one, working(redis_url, gated(gate)) as worker:
        path = await submit(one)
        await worker.wait_granted()
        assert (await one.http.get(path + "?wait=0.2")).json()["state"] == "running"
        waiting = asyncio.create_task(one.http.get(path + "?wait=10"))
        await asyncio.sleep(0)
        gate.set()
        async with asyncio.timeout(3):
            assert (await waiting).json()["state"] == "done"


@pytest.mark.parametrize("wait", ["soon", "-1", "1e9", "inf"])
async def test_a_bad_wait_is_refused(redis_url: str, wait: str) -> None:
    async with serving(redis_url) as one:
        reply = await one.http.get(f"/v1/requests/{new_request_id('default')}?wait={wait}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "wait")


async def test_a_streams_result_is_its_assembled_text(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer):
        shown = (await one.http.get(await submit(one, STREAM) + "?wait=5")).json()
    body = shown["result"]["body"]
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "Hello!"


async def test_a_streams_result_above_one_reply_is_whole(redis_url: str) -> None:
    events = [chunk("x" * 100_000) for _ in range(25)]

    async def large(worker: Any, grant: Any) -> None:
        for n, event in enumerate(events):
            await worker.emit(grant, n, event)
        await worker.finish(grant, DONE, len(events))

    async with serving(redis_url) as one, working(redis_url, large):
        shown = (await one.http.get(await submit(one, STREAM) + "?wait=5")).json()
    assert len(shown["result"]["body"]["choices"][0]["message"]["content"]) == 2_500_000


async def test_failures_are_shown_with_status_and_reason(redis_url: str) -> None:
    body = b'{"error": {"message": "no"}}'
    async with serving(redis_url) as one:
        async with working(redis_url, end_with(Result("failed", 400, body=body))):
            passed = (await one.http.get(await submit(one) + "?wait=5")).json()
        async with working(redis_url, end_with(Result("failed", reason="result_too_large"))):
            large = (await one.http.get(await submit(one) + "?wait=5")).json()
    assert passed["result"] == {"status": 400, "reason": None, "body": json.loads(body)}
    assert large["state"] == "failed"
    assert (large["result"]["status"], large["result"]["reason"]) == (500, "result_too_large")
    assert large["result"]["body"]["error"]["code"] == "result_too_large"


@pytest.mark.parametrize("stated", ["application/json", "text/plain"])
async def test_an_answer_that_is_not_json_is_shown_as_text(redis_url: str, stated: str) -> None:
    odd = end_with(Result("done", 200, stated, body=b"plain \xff text"))
    async with serving(redis_url) as one, working(redis_url, odd):
        shown = (await one.http.get(await submit(one) + "?wait=5")).json()
    assert shown["result"]["body"] == "plain � text"


async def test_deleting_cancels_queued_and_running(redis_url: str) -> None:
    async with serving(redis_url) as one:
        path = await submit(one)
        assert (await one.http.delete(path)).json()["state"] == "cancelled"
        async with working(redis_url, stay) as worker:
            path = await submit(one)
            (grant,) = await worker.wait_granted()
            assert (await one.http.delete(path)).json()["state"] == "cancelled"
            await worker.wait_order(f"cancel {grant.request_id}", within_s=1)
            assert await worker.finish(grant, DONE) == "lost"
        shown = (await one.http.get(path)).json()
    assert (shown["state"], shown["result"]["status"]) == ("cancelled", 499)


async def test_deleting_what_has_ended_changes_nothing(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer):
        path = await submit(one)
        await one.http.get(path + "?wait=5")
        assert (await one.http.delete(path)).json()["state"] == "done"


async def test_a_synchronous_waiter_learns_that_it_was_cancelled(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, stay) as worker:
        asking = asyncio.create_task(one.http.post(CHAT, json=BODY))
        (grant,) = await worker.wait_granted()
        await one.http.delete(f"/v1/requests/{grant.request_id}")
        reply = await asking
    assert (reply.status_code, reply.headers["x-should-retry"]) == (499, "false")


async def test_events_have_offsets_and_an_end(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer):
        path = await submit(one, STREAM)
        reply = await one.http.get(path + "/events")
        rest = await one.http.get(path + "/events", headers={"last-event-id": "2"})
        none = await one.http.get(path + "/events", headers={"last-event-id": "3"})
        beyond = await one.http.get(path + "/events", headers={"last-event-id": "9"})
    texts = [chunk(text).decode() for text in ("Hel", "lo", "!")]
    ids = [{"id": str(n), "data": text} for n, text in enumerate(texts, 1)]
    end = {"event": "end", "data": '{"state": "done"}'}
    assert parse_events(reply.text) == [*ids, end]
    assert parse_events(rest.text) == [ids[2], end]
    assert parse_events(none.text) == [end]
    assert beyond.status_code == 410


async def test_an_id_from_beyond_a_stream_is_an_error(redis_url: str) -> None:
    """A failover has lost what this client has read: what would follow may be another text."""
    emitted, gate = asyncio.Event(), asyncio.Event()

    async def half(worker: Any, grant: Any) -> None:
        await worker.emit(grant, 0, chunk("a"))
        emitted.set()
        await gate.wait()
        await worker.finish(grant, DONE, 1, chunk("b"))

    async with serving(redis_url) as one, working(redis_url, half):
        path = await submit(one, STREAM)
        await emitted.wait()
        beyond = await one.http.get(path + "/events", headers={"last-event-id": "9"})
        gate.set()
    assert beyond.status_code == 410
    assert "Last-Event-ID" in beyond.json()["error"]["message"]


async def test_events_of_a_synchronous_stream_are_read_on_any_replica(redis_url: str) -> None:
    gate = asyncio.Event()

    async def half(worker: Any, grant: Any) -> None:
        await worker.emit(grant, 0, chunk("a"))
        await gate.wait()
        await worker.finish(grant, DONE, 1, chunk("b"))

    async with serving(redis_url) as a, serving(redis_url) as b, working(redis_url, half):
        asking = asyncio.create_task(a.http.post(CHAT, json=STREAM))
        inbox = a.producer.replica.pools["default"].inbox
        await until(lambda: any(reader.have for reader in inbox.readers()))
        path = f"/v1/requests/{inbox.readers()[0].request_id}/events"
        async with b.http.stream("GET", path) as other:
            parts = other.aiter_raw()
            assert await anext(parts) == b"id: 1\ndata: " + chunk("a") + b"\n\n"
            gate.set()
            rest = b"".join([part async for part in parts])
        first = (await asking).content
    assert rest.startswith(b"id: 2\n")
    assert first.endswith(b"data: [DONE]\n\n")


async def test_a_failed_stream_followed_ends_with_its_error(redis_url: str) -> None:
    failed = end_with(Result("failed", 500, body=b'{"error": {"message": "x"}}'), b"{}")
    async with serving(redis_url) as one, working(redis_url, failed):
        events = parse_events((await one.http.get(await submit(one, STREAM) + "/events")).text)
    assert events == [
        {"id": "1", "data": "{}"},
        {"event": "error", "data": '{"error": {"message": "x"}}'},
        {"event": "end", "data": '{"state": "failed"}'},
    ]


async def test_events_of_what_does_not_stream_are_its_end(redis_url: str) -> None:
    async with serving(redis_url) as one, working(redis_url, answer):
        reply = await one.http.get(await submit(one) + "/events")
    assert parse_events(reply.text) == [{"event": "end", "data": '{"state": "done"}'}]


async def test_a_bad_last_event_id_is_refused(redis_url: str) -> None:
    async with serving(redis_url) as one:
        path = await submit(one, STREAM)
        reply = await one.http.get(path + "/events", headers={"last-event-id": "one"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "Last-Event-ID")


async def test_unknown_requests_are_404_and_old_ones_410(redis_url: str) -> None:
    old = f"default.{new_ulid(now_ms=1_600_000_000_000)}"
    young, foreign = new_request_id("default"), new_request_id("elsewhere")
    async with serving(redis_url) as one:
        status = {
            (name, path): (await one.http.request(method, f"/v1/requests/{name}{path}")).status_code
            for name in (old, young, foreign, "nonsense")
            for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events"))
        }
    assert {status[old, path] for path in ("", "/events")} == {410}
    assert {code for (name, _), code in status.items() if name != old} == {404}


async def test_a_result_past_its_time_is_gone(redis_url: str) -> None:
    """The request's record outlives the result, and says the same."""
    async with serving(redis_url) as one, working(redis_url, answer):
        path = await submit(one, STREAM)
        await one.http.get(path + "?wait=5")
        with redis.Redis.from_url(redis_url) as client:
            for kind in ("result", "output"):
                assert client.delete(*client.keys(f"*:{kind}:*"))
        for part in ("", "?wait=1", "/events"):
            assert (await one.http.get(path + part)).status_code == 410


async def test_the_time_of_a_result_runs_from_its_end(redis_url: str) -> None:
    """A client that comes late, after a long wait, still finds its result."""
    gate = asyncio.Event()
    async with serving(redis_url) as one:
        pool = one.producer.replica.pools["default"]
        settings, epoch = await pool.operator.settings()
        short = settings.model_copy(update={"result_ttl_ms": 1_000})
        await pool.operator.change_settings(short, epoch)
        async with working(redis_url, gated(gate)) as worker:
            path = await submit(one)
            await worker.wait_granted()
            await asyncio.sleep(1.2)  # longer than the result will live
            gate.set()
            assert (await one.http.get(path + "?wait=5")).json()["state"] == "done"
            await asyncio.sleep(0.5)
            assert (await one.http.get(path)).json()["result"]["body"] == ANSWER
            await asyncio.sleep(0.7)
            assert (await one.http.get(path)).status_code == 410


async def test_only_the_last_client_decides_nothing_for_asynchronous_ones(redis_url: str) -> None:
    """Whoever waits for or follows an asynchronous request may leave; it goes on."""
    gate = asyncio.Event()
    async with serving(redis_url) as one, working(redis_url, gated(gate)) as worker:
        path = await submit(one, STREAM)
        await worker.wait_granted()
        for part in ("?wait=10", "/events"):
            leaving = asyncio.create_task(one.http.get(path + part))
            await asyncio.sleep(0.1)
            leaving.cancel()
        await asyncio.sleep(0.3)
        gate.set()
        shown = (await one.http.get(path + "?wait=5")).json()
    assert shown["state"] == "done"
    assert worker.orders == []
    assert wants_stream(worker.granted[0])


async def test_comments_keep_a_follower_alive(redis_url: str) -> None:
    quick = replace(QUICK, comment_every_s=0.1)
    async with (
        serving(redis_url, timings=quick) as one,
        working(redis_url, stay),
        one.http.stream("GET", await submit(one, STREAM) + "/events") as reply,
    ):
        assert await anext(reply.aiter_raw()) == b": waiting\n"
