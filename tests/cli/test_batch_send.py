"""How a batch comes back: after refusals, silence, and results that are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.fake import FakeProducer, Reply, error, shown
from tests.cli.queue_played import GET, POST, Queue, row, rows, written

from forebay_shared.cli.api import Place, Producer
from forebay_shared.cli.batch_files import BatchFiles
from forebay_shared.cli.batch_lines import read_batch
from forebay_shared.cli.batch_send import NEW_TRIES, PATIENCE_S, Sender
from forebay_shared.cli.terminal import Problem

pytestmark = pytest.mark.anyio


class QuickClock:
    """Sleeps by moving on at once; `waits` is what it was asked for."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def now_s(self) -> float:
        return sum(self.waits)

    async def sleep(self, delay_s: float) -> None:
        self.waits.append(delay_s)


class Batch:
    """One line sent; what is left of it."""

    def __init__(self, fake: FakeProducer, folder: Path) -> None:
        self._fake = fake
        self.folder = folder
        self.clock = QuickClock()
        self.ended: list[bool] = []

    async def send(self) -> None:
        lines = read_batch(written(self.folder, row()), None)
        files = BatchFiles(self.folder / "results", self.folder / "errors", lines)
        async with Producer(Place(self._fake.url)) as producer:
            with files:
                await Sender(producer, files, {}, self.ended.append, self.clock).send(lines, 8)

    def results(self) -> list[dict[str, Any]]:
        return rows(self.folder / "results")

    def errors(self) -> list[dict[str, Any]]:
        return rows(self.folder / "errors")


@pytest.fixture
def batch(fake: FakeProducer, tmp_path: Path) -> Batch:
    """A batch of one line."""
    return Batch(fake, tmp_path)


@pytest.fixture
def queue(fake: FakeProducer) -> Queue:
    """What the producer plays, until a test says otherwise."""
    return Queue(fake)


def keys(fake: FakeProducer) -> list[str]:
    return [asked.headers["idempotency-key"] for asked in fake.of("POST", "/")]


@pytest.mark.parametrize(
    ("refusal", "waits"),
    [
        ((429, error("Slow."), {"Retry-After": "3"}), [3.0, 3.0]),
        ((503, error("Full."), {"Retry-After": "3", "retry-after-ms": "2500"}), [2.5, 2.5]),
        ((503, error("Full.")), [1.0, 2.0]),
        ((502, error("Bad gateway.")), [1.0, 2.0]),
    ],
)
async def test_it_comes_back_when_told(
    fake: FakeProducer, queue: Queue, batch: Batch, refusal: Reply, waits: list[float]
) -> None:
    """After Retry-After, the finer one first; where there is none, later and later."""
    fake.scripts[POST] = lambda asked: refusal if asked.count < 2 else queue.admit(asked)
    await batch.send()
    assert (batch.ended, batch.clock.waits) == ([True], waits)
    assert len(set(keys(fake))) == 1


async def test_a_question_for_the_result_comes_back_too(
    fake: FakeProducer, queue: Queue, batch: Batch
) -> None:
    """The request was admitted; that Redis is away for a while costs nothing."""
    away = (503, error("The queue does not answer."), {"Retry-After": "2"})
    fake.scripts[GET] = lambda asked: away if asked.count < 2 else queue.show(asked)
    await batch.send()
    assert (batch.ended, batch.clock.waits) == ([True], [2.0, 2.0])
    assert len(keys(fake)) == 1


async def test_a_refusal_that_is_final_is_not_repeated(
    fake: FakeProducer, queue: Queue, batch: Batch
) -> None:
    """`x-should-retry: false`."""
    fake.scripts[POST] = lambda _: (503, error("Never."), {"x-should-retry": "false"})
    await batch.send()
    assert (batch.ended, batch.clock.waits) == ([False], [])
    assert batch.errors()[0]["response"]["body"] == error("Never.")


async def test_results_that_are_gone_are_asked_for_anew(
    fake: FakeProducer, queue: Queue, batch: Batch
) -> None:
    """Under another key, since the old one still means the old request."""
    gone = (410, error("The result has expired."))
    fake.scripts[POST] = lambda asked: queue.admit(asked) if asked.count else gone
    fake.scripts[GET] = lambda asked: (
        (404, error("Gone.")) if asked.path.endswith("0") else queue.show(asked)
    )
    await batch.send()
    assert [key[-2:] for key in keys(fake)] == ["_0", "_1", "_2"]
    assert batch.results()[0]["id"] == keys(fake)[2]


async def test_results_that_are_always_gone_end_as_an_error(
    fake: FakeProducer, queue: Queue, batch: Batch
) -> None:
    """It does not submit for ever."""
    fake.scripts[GET] = lambda _: (404, error("Gone."))
    await batch.send()
    assert batch.errors()[0]["error"]["code"] == "result_expired"
    assert len(keys(fake)) == NEW_TRIES


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        ((401, error("This API key is not known.")), r"not known\. \(give the key with --api-key"),
        (
            (400, {"error": {"message": "X-Priority must be one of a, b.", "param": "X-Priority"}}),
            "X-Priority must be one of a, b",
        ),
    ],
)
async def test_what_would_be_said_of_every_line_is_said_once(
    fake: FakeProducer, queue: Queue, batch: Batch, refusal: Reply, told: str
) -> None:
    """A wrong key or class ends the run instead of filling the errors."""
    fake.scripts[POST] = lambda _: refusal
    with pytest.raises(Problem, match=told):
        await batch.send()
    assert not (batch.folder / "errors").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (error("It crashed."), "It crashed."),
        ("odd", "The request is dead."),
        ({}, "The request is"),
    ],
)
async def test_an_end_without_an_answer_says_why(
    fake: FakeProducer, queue: Queue, batch: Batch, body: object, message: str
) -> None:
    """In the server's words where it has some."""
    result = {"status": 500, "reason": "crash_loop", "body": body}
    fake.scripts[GET] = lambda _: (200, shown("dead", result=result))
    await batch.send()
    (one,) = batch.errors()
    assert one["response"] is None
    assert one["error"]["message"].startswith(message)


async def test_a_silent_producer_ends_the_run(
    fake: FakeProducer, queue: Queue, batch: Batch
) -> None:
    """After a while, with the advice to run the command again; nothing is written for the line."""
    fake.scripts[POST] = lambda _: (502, error("Bad gateway."))
    with pytest.raises(Problem, match="has not answered for 300 s; run the same command again"):
        await batch.send()
    assert PATIENCE_S < batch.clock.now_s() < PATIENCE_S + 60
    assert (batch.results(), batch.ended) == ([], [])
