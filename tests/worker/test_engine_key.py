"""An engine that refuses the worker's key: the worker's fault, and no client's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.worker.desk import CHAT, Desk
from tests.worker.keyed import REFUSAL, KeyedEngine, keyed_engine
from tests.worker.scripted import answer

from forebay_shared.records import Envelope
from forebay_worker.engine.openai import OpenAIEngine

pytestmark = pytest.mark.anyio

EVENT = "engine refuses our key"


@pytest.fixture
async def keyed() -> AsyncIterator[KeyedEngine]:
    async with keyed_engine() as engine:
        yield engine


def told(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.getMessage() == EVENT for record in caplog.records)


@pytest.mark.parametrize("refusal", [401, 403, 407])
async def test_without_the_right_key_nothing_is_taken(
    desk: Desk, keyed: KeyedEngine, caplog: pytest.LogCaptureFixture, refusal: int
) -> None:
    """It is told once and loudly, /readyz says why, and the right key mends it."""
    keyed.refusal = refusal
    worker, _ = await desk.worker(OpenAIEngine(keyed.url, "wrong"))
    request_id = await desk.submit()
    for _ in range(2):
        keyed.asked.clear()
        await keyed.asked.wait()
    assert (await desk.state(request_id), keyed.calls) == ("queued", [])
    assert worker.health.why_not_ready() == EVENT
    assert told(caplog) == 1
    keyed.key = "wrong"
    assert (await desk.result(request_id)).body == answer()
    assert worker.health.why_not_ready() is None


@pytest.mark.parametrize("refusal", [401, 403, 407])
async def test_a_key_that_is_refused_later_blames_nobody(
    desk: Desk, keyed: KeyedEngine, caplog: pytest.LogCaptureFixture, refusal: int
) -> None:
    """The request goes back as it came, and nothing is taken until the key is let in again."""
    worker, _ = await desk.worker(OpenAIEngine(keyed.url, "right"))
    assert (await desk.result(await desk.submit())).state == "done"
    keyed.key, keyed.refusal = "other", refusal
    keyed.called.clear()
    request_id = await desk.submit()
    await keyed.called.wait()
    await desk.until(request_id, "queued")
    for _ in range(2):
        keyed.asked.clear()
        await keyed.asked.wait()
    assert worker.health.why_not_ready() == EVENT
    assert (len(keyed.calls), told(caplog)) == (2, 1)
    keyed.key = "right"
    assert (await desk.result(request_id)).body == answer()
    shown = await desk.show(request_id)
    assert (shown.takes, shown.attempts, shown.crashes) == (2, 0, 0)


async def test_an_engine_whose_list_is_open_to_all_is_asked_less_and_less(
    desk: Desk, keyed: KeyedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Its models tell nothing of the key: pauses grow, and it is told once all the same."""
    await desk.worker(OpenAIEngine(keyed.url, "right"))
    keyed.refuses_calls = True
    request_id = await desk.submit()
    while len(keyed.calls) < 3:
        keyed.called.clear()
        await keyed.called.wait()
    assert told(caplog) == 1
    keyed.refuses_calls = False
    assert (await desk.result(request_id)).state == "done"
    assert (await desk.show(request_id)).attempts == 0


async def test_what_the_engine_forbids_to_a_request_ends_it(desk: Desk, keyed: KeyedEngine) -> None:
    """403 while the key is let in may be about this very request: it is tried as often as others"""
    await desk.worker(OpenAIEngine(keyed.url, "right"))
    keyed.refusal, keyed.refuses_calls = 403, True
    result = await desk.result(await desk.submit())
    assert (result.state, result.status, result.body) == ("failed", 403, REFUSAL)
    assert len(keyed.calls) == desk.settings.attempts


async def test_id_and_trace_of_a_request_travel_to_the_engine(
    desk: Desk, keyed: KeyedEngine
) -> None:
    """The engine's log and spans can be found by what the client knows."""
    await desk.worker(OpenAIEngine(keyed.url, "right"))
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    headers = trace | {"tracestate": "a=b"}
    (request_id,) = await desk.admit([Envelope(CHAT, "m", b'{"model":"m"}', headers=headers)])
    await desk.result(request_id)
    (seen,) = keyed.calls
    assert seen["X-Request-Id"] == request_id
    assert (seen["traceparent"], seen["tracestate"]) == (trace["traceparent"], "a=b")
