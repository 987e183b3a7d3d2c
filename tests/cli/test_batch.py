"""`forebay submit --file`: every request ends in one row, whatever happens on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.cli.conftest import Forebay
from tests.cli.fake import Asked, FakeProducer, Reply, error, shown
from tests.cli.queue_played import ANSWER, GET, POST, URL, Queue, nth_id, row, rows, written


def test_a_batch_that_goes_well(tmp_path: Path, fake: FakeProducer, forebay: Forebay) -> None:
    """Each line in one row of OpenAI's format; nothing else is left."""
    queue = Queue(fake)
    path = written(tmp_path, row("a"), row("b"), row("c"))
    result = forebay("submit", "--url", fake.url, "--file", str(path), "--class", "background")
    assert result.exit_code == 0
    results = tmp_path / "batch.results.jsonl"
    assert result.stdout == f"3 of 3 done, 0 failed\nresults: {results}\n"
    found = {one["custom_id"]: one for one in rows(results)}
    assert set(found) == {"a", "b", "c"}
    one = found["b"]
    assert set(one) == {"id", "custom_id", "response", "error"}
    assert one["response"] == {
        "status_code": 200,
        "request_id": queue.ids[one["id"]],
        "body": ANSWER,
    }
    assert one["error"] is None
    assert not (tmp_path / "batch.errors.jsonl").exists()
    for asked in fake.of("POST", "/"):
        assert asked.headers["prefer"] == "respond-async"
        assert asked.headers["x-priority"] == "background"
    assert {asked.query["wait"] for asked in fake.of("GET", URL)} == {"30"}


def test_json_tells_the_counts(tmp_path: Path, fake: FakeProducer, forebay: Forebay) -> None:
    """One document; the files where --output says."""
    Queue(fake)
    path, output = written(tmp_path, row("a")), tmp_path / "out.jsonl"
    words = ("submit", "--url", fake.url, "--json", "--file", str(path), "--output", str(output))
    result = forebay(*words)
    assert json.loads(result.stdout) == {
        "total": 1,
        "done": 1,
        "failed": 0,
        "before": 0,
        "results": str(output),
        "errors": None,
    }
    assert len(rows(output)) == 1


def test_failures_go_to_the_errors(tmp_path: Path, fake: FakeProducer, forebay: Forebay) -> None:
    """With the HTTP answer where there is one, else with code and message; exit code 1."""
    queue = Queue(fake)
    queue.states = {nth_id(1): "failed", nth_id(2): "expired"}
    path = written(tmp_path, row("a"), row("b"), row("c"))
    result = forebay("submit", "--url", fake.url, "--file", str(path), "--concurrency", "1")
    assert result.exit_code == 1
    errors = tmp_path / "batch.errors.jsonl"
    assert "1 of 3 done, 2 failed\n" in result.stdout
    assert f"errors:  {errors}\n" in result.stdout
    failed, expired = rows(errors)
    assert (failed["custom_id"], failed["error"]) == ("b", None)
    assert failed["response"]["status_code"] == 422
    assert failed["response"]["body"] == error("No such thing.")
    assert (expired["custom_id"], expired["response"]) == ("c", None)
    assert expired["error"] == {"code": "deadline", "message": "Too late."}


def test_a_refused_request_is_an_error_row(
    tmp_path: Path, fake: FakeProducer, forebay: Forebay
) -> None:
    """As when the model does not exist; the others go on. A proxy's words are kept as text."""
    queue = Queue(fake)
    refusals: dict[str, Reply] = {"b": (404, error("No such model.")), "c": (413, "<html>")}

    def admit(asked: Asked) -> Reply:
        return refusals.get(asked.json()["messages"][0]["content"]) or queue.admit(asked)

    fake.scripts[POST] = admit
    lines = [row(x, body={"model": "m", "messages": [{"content": x}]}) for x in "abc"]
    result = forebay("submit", "--url", fake.url, "--file", str(written(tmp_path, *lines)))
    assert result.exit_code == 1
    statuses = {
        one["custom_id"]: one["response"]["status_code"]
        for one in rows(tmp_path / "batch.errors.jsonl")
    }
    assert statuses == {"b": 404, "c": 413}


def test_nobody_there_is_told_at_once(tmp_path: Path, forebay: Forebay) -> None:
    """And not after the patience of a batch."""
    path = written(tmp_path, row("a"))
    result = forebay("submit", "--url", "http://127.0.0.1:1", "--file", str(path))
    assert result.exit_code == 1
    assert "no producer answers at http://127.0.0.1:1" in result.stderr


def test_a_second_run_sends_only_what_is_missing(
    tmp_path: Path, fake: FakeProducer, forebay: Forebay
) -> None:
    """What is done stays; what failed gets a new try, and its error goes when that ends well."""
    queue = Queue(fake)
    queue.states = {nth_id(1): "failed"}
    words = ("submit", "--url", fake.url, "--concurrency", "1", "--file")
    path = written(tmp_path, row("a"), row("b"))
    assert forebay(*words, str(path)).exit_code == 1
    fake.asked.clear()
    result = forebay(*words, str(path))
    assert result.exit_code == 0
    assert result.stdout.startswith("2 of 2 done (1 before this run), 0 failed\n")
    (again,) = fake.of("POST", "/")
    assert again.headers["idempotency-key"].endswith("_1")
    assert [one["custom_id"] for one in rows(tmp_path / "batch.results.jsonl")] == ["a", "b"]
    assert not (tmp_path / "batch.errors.jsonl").exists()
    assert forebay(*words, str(path)).exit_code == 0
    assert len(fake.of("POST", "/")) == 1


def test_a_batch_that_is_done_needs_no_producer(
    tmp_path: Path, fake: FakeProducer, forebay: Forebay
) -> None:
    """Run again it tells the same."""
    Queue(fake)
    path = written(tmp_path, row("a"))
    forebay("submit", "--url", fake.url, "--file", str(path))
    result = forebay("submit", "--url", "http://127.0.0.1:1", "--file", str(path))
    assert result.exit_code == 0
    assert result.stdout.startswith("1 of 1 done (1 before this run), 0 failed\n")


def test_a_row_that_was_cut_off_is_written_again(
    tmp_path: Path, fake: FakeProducer, forebay: Forebay
) -> None:
    """As after a kill in the middle of a write; the file stays readable line by line."""
    Queue(fake)
    words = ("submit", "--url", fake.url, "--concurrency", "1", "--file")
    path = written(tmp_path, row("a"), row("b"))
    forebay(*words, str(path))
    results = tmp_path / "batch.results.jsonl"
    results.write_bytes(results.read_bytes()[:-20])
    assert forebay(*words, str(path)).exit_code == 0
    assert [one["custom_id"] for one in rows(results)] == ["a", "b"]


@pytest.mark.parametrize("text", ['{"id": "batch_req_1"}\n', "my notes", '{"custom_id": "a"}\n'])
def test_files_of_somebody_else_are_left_alone(
    tmp_path: Path, fake: FakeProducer, forebay: Forebay, text: str
) -> None:
    """Exit code 2, not a byte changed."""
    output = tmp_path / "notes.txt"
    output.write_text(text)
    words = ("submit", "--url", fake.url, "--output", str(output), "--file")
    result = forebay(*words, str(written(tmp_path, row("a"))))
    assert result.exit_code == 2
    assert "notes.txt belongs to another batch" in result.stderr
    assert output.read_text() == text


def test_a_batch_that_has_changed_is_another_one(
    tmp_path: Path, fake: FakeProducer, forebay: Forebay
) -> None:
    """Its old results are kept, and not mixed with new ones."""
    Queue(fake)
    words = ("submit", "--url", fake.url, "--file")
    forebay(*words, str(written(tmp_path, row("a"))))
    before = (tmp_path / "batch.results.jsonl").read_bytes()
    result = forebay(*words, str(written(tmp_path, row("a"), row("b"))))
    assert result.exit_code == 2
    assert "or the input has changed since it was written" in result.stderr
    assert (tmp_path / "batch.results.jsonl").read_bytes() == before
    assert len(fake.of("POST", "/")) == 1


def test_output_that_cannot_be_written_is_told(tmp_path: Path, forebay: Forebay) -> None:
    """Before anything is sent."""
    output = str(tmp_path / "no" / "such" / "folder.jsonl")
    words = ("submit", "--output", output, "--file", str(written(tmp_path, row("a"))))
    result = forebay(*words)
    assert result.exit_code == 2
    assert "cannot be written (No such file or directory)" in result.stderr


def test_no_more_are_under_way_than_asked_for(
    tmp_path: Path, fake: FakeProducer, forebay: Forebay
) -> None:
    """Submitted and not ended: never above --concurrency."""
    queue = Queue(fake)
    under_way, most = set[str](), 0

    def admit(asked: Asked) -> Reply:
        nonlocal most
        reply = queue.admit(asked)
        under_way.add(reply[1]["id"])  # type: ignore[index, arg-type]
        most = max(most, len(under_way))
        return reply

    def show(asked: Asked) -> Reply:
        under_way.discard(asked.path.removeprefix(URL))
        return queue.show(asked)

    fake.scripts |= {POST: admit, GET: show}
    path = written(tmp_path, *(row(str(number)) for number in range(40)))
    result = forebay("submit", "--url", fake.url, "--concurrency", "4", "--file", str(path))
    assert result.exit_code == 0
    assert most == 4


def start(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_stopped_by_the_user_and_run_again(tmp_path: Path, fake: FakeProducer) -> None:
    """^C leaves what is done; the second run finds what was admitted, by its key."""
    queue = Queue(fake)
    held = threading.Event()

    def show(asked: Asked) -> Reply:
        if asked.path.endswith("0"):
            return queue.show(asked)
        held.set()
        return 200, shown("running", id=asked.path.removeprefix(URL))

    fake.scripts[GET] = show
    path = written(tmp_path, row("a"), row("b"), row("c"))
    words = [sys.executable, "-m", "forebay_shared.cli", "submit", "--url", fake.url]
    words += ["--concurrency", "1", "--file", str(path)]
    first = start(words)
    assert held.wait(20)
    first.send_signal(signal.SIGINT)
    _, told = first.communicate(timeout=10)
    assert first.returncode == 130
    assert told.startswith("stopped; what was submitted goes on.")
    assert [one["custom_id"] for one in rows(tmp_path / "batch.results.jsonl")] == ["a"]
    fake.scripts[GET] = queue.show
    second = start(words)
    said, _ = second.communicate(timeout=20)
    assert second.returncode == 0
    assert said.startswith("3 of 3 done (1 before this run), 0 failed\n")
    assert len(queue.ids) == 3
