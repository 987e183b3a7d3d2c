"""`forebay up`: the whole system in one command, as a newcomer meets it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.request import Request, urlopen

import pytest
from click.testing import Result
from tests.cli.conftest import Forebay
from tests.cli.queue_played import BODY, row, rows, written
from tests.servers import wait_folder_free

from forebay_shared.ids import pool_of

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = ("shared", "producer", "worker")
STOP_S = 20.0
QUESTION = "What does a forebay do?"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Up:
    """A running `forebay up --json`; its stderr is in `log`."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.state = folder / "state"
        self.log = folder / "up.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ready: dict[str, Any] = {}
        self.answer: dict[str, Any] = {}
        command = [sys.executable, "-m", "forebay_shared.cli", "up", "--json"]
        command += ["--port", str(self.port), "--state", str(self.state), *words]
        parts = os.pathsep.join(str(ROOT / part) for part in COMPONENTS)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": parts},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def next(self) -> dict[str, Any]:
        """The next event; what it says on stdout is nothing else."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        event: dict[str, Any] = json.loads(line)
        return event

    def told(self, words: str) -> None:
        """Returns when stderr has these words; the file is asked often."""
        began = monotonic()
        while words not in self.log.read_text():
            assert monotonic() - began < STOP_S, self.log.read_text()

    def end(self) -> None:
        """Leaves nothing behind where a test failed half-way: children end with their parent."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self, *, hurry: bool = False) -> int:
        """^C, or two of them; the exit code."""
        self.process.send_signal(signal.SIGINT)
        if hurry and self.process.poll() is None:
            assert self.next() == {"event": "stopping"}
            self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=STOP_S)
        return self.process.returncode


def is_gone(pid: int) -> bool:
    """Whether no such process runs; one that ended and was not reaped by its parent is gone too."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip() in ("", "Z", "Zs")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One that serves all tests of this file that only use it; `test_stop`, the last, stops it."""
    running = Up(tmp_path_factory.mktemp("up"), "--slots", "8", "--ask", QUESTION)
    try:
        running.ready = running.next()
        running.answer = running.next()
        yield running
    finally:
        running.end()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts one of a test's own, with these words."""
    started: list[Up] = []

    def call(*words: str) -> Up:
        started.append(Up(tmp_path, *words))
        return started[-1]

    yield call
    for one in started:
        one.end()


@pytest.fixture
def here(up: Up, forebay: Forebay) -> Forebay:
    """`forebay` with this system in its environment, as a user would set it."""

    def call(*words: str, **more: Any) -> Result:
        return forebay(*words, FOREBAY_URL=up.url, FOREBAY_STATE=str(up.state), **more)

    return call


def test_ask(up: Up) -> None:
    """Ready, then the answer."""
    assert up.ready["event"] == "ready"
    assert up.ready["base_url"] == f"http://127.0.0.1:{up.port}/v1"
    assert up.ready["model"] == "sim"
    assert set(up.ready["pids"]) == {"redis", "producer", "worker 1"}
    assert up.answer["event"] == "answer"
    assert len(up.answer["text"].split()) > 3


def test_submit_streams(here: Forebay) -> None:
    """Through the queue, to the terminal."""
    result = here("submit", "--max-tokens", "5", "Hello")
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()


def test_submit_show_and_cancel(here: Forebay) -> None:
    """Left, looked at, waited for; then another, cancelled while it runs or waits."""
    first = here("submit", "--async", "--max-tokens", "5", "Hello").stdout.strip()
    assert pool_of(first) == "default"
    ended = json.loads(here("show", "--wait", "--json", first).stdout)
    assert (ended["state"], ended["class"]) == ("done", "normal")
    assert ended["result"]["body"]["choices"][0]["message"]["content"]
    assert "state     done" in here("show", first).stdout
    words = ("submit", "--async", "--max-tokens", "4000", "--class", "low", "--json", "Hello")
    second = json.loads(here(*words).stdout)["id"]
    assert here("cancel", second).stdout == "cancelled\n"
    assert here("cancel", second).exit_code == 0
    late = here("cancel", first)
    assert (late.exit_code, late.stderr) == (1, "Error: the request has ended before: it is done\n")
    waited = here("show", "--wait", second)
    assert waited.exit_code == 1
    assert "state     cancelled" in waited.stdout


def test_status_finds_the_embedded_server(here: Forebay) -> None:
    """By the state folder alone."""
    result = here("status", "--json")
    (pool,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert [worker["slots"] for worker in pool["workers"]] == [8]
    assert pool["models"] == ["sim"]


def test_a_batch(here: Forebay, tmp_path: Path) -> None:
    """Good and bad lines, run twice: the second run sends nothing that was done."""
    body = {"model": "sim", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    lines = [row(str(number), body=body) for number in range(20)]
    lines.append(row("embed", url="/v1/embeddings", body={"model": "sim", "input": "Hi"}))
    lines.append(row("bad", body=body | {"max_tokens": -1}))
    path = written(tmp_path, *lines)
    result = here("submit", "--file", str(path))
    assert result.exit_code == 1, result.output
    assert "21 of 22 done, 1 failed" in result.stdout
    results = rows(tmp_path / "batch.results.jsonl")
    assert {one["response"]["status_code"] for one in results} == {200}
    (failed,) = rows(tmp_path / "batch.errors.jsonl")
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("bad", 400)
    again = here("submit", "--json", "--file", str(path))
    assert json.loads(again.stdout)["before"] == 21
    assert rows(tmp_path / "batch.results.jsonl") == results


def test_the_sdk_snippet_of_the_readme(up: Up) -> None:
    """As it stands there, but for the port."""
    text = (ROOT / "README.md").read_text()
    snippet = text.split("```python\n")[1].split("```")[0].replace(":8000", f":{up.port}")
    command = [sys.executable, "-c", snippet]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_the_port_is_taken(up: Up, forebay: Forebay, tmp_path: Path) -> None:
    """One sentence before anything is started."""
    state = tmp_path / "state"
    result = forebay("up", "--port", str(up.port), "--state", str(state))
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: port {up.port} on 127.0.0.1 is taken; stop what listens there, "
        "or choose another with --port\n"
    )
    assert not state.exists()


def test_a_state_folder_that_cannot_be(forebay: Forebay, tmp_path: Path) -> None:
    """What the embedded server objects to is told in its words, without a trace."""
    (tmp_path / "file").touch()
    result = forebay("up", "--port", "0", "--state", str(tmp_path / "file" / "state"))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert str(tmp_path / "file") in result.stderr


def test_a_redis_that_does_not_answer(forebay: Forebay) -> None:
    """Told at once instead of waited for."""
    result = forebay("up", "--port", "0", "--redis", "redis://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.stderr == "Error: Redis at redis://127.0.0.1:1 does not answer; is it running?\n"


def test_a_child_that_cannot_start(start: Callable[..., Up]) -> None:
    """Everything is stopped again, with what the child said above the error."""
    up = start("--engine", "nonsense")
    assert up.process.wait(STOP_S) == 1
    log = up.log.read_text()
    assert "worker 1 | Error: Invalid value for '--engine'" in log
    assert log.endswith("Error: worker 1 cannot start (exit code 2); its last words are above\n")
    wait_folder_free(up.state)


def test_what_dies_comes_back(start: Callable[..., Up]) -> None:
    """Redis, producer and worker, each killed; then a question is answered still."""
    up = start("--workers", "2")
    ready = up.next()
    pids = ready["pids"]
    assert set(pids) == {"redis", "producer", "worker 1", "worker 2"}
    for name in ("redis", "worker 1", "producer"):
        os.kill(pids[name], signal.SIGKILL)
    up.told("the embedded server ended; it is started again")
    up.told("worker 1 ended (signal SIGKILL); it is started again in 0.5 s")
    up.told("producer ended (signal SIGKILL); it is started again in 0.5 s")
    assert until_answered(up) == 200
    assert up.stop(hurry=True) == 0


def until_answered(up: Up) -> int:
    """Ask until a whole answer comes; its status."""
    body = json.dumps(BODY | {"max_tokens": 2}).encode()
    request = Request(f"{up.url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    began = monotonic()
    while True:
        try:
            with urlopen(request, timeout=20) as answer:
                return int(answer.status)
        except OSError:
            assert monotonic() - began < STOP_S, up.log.read_text()


def test_a_kill_leaves_nobody(start: Callable[..., Up]) -> None:
    """`kill -9` of `forebay up` ends its children too."""
    up = start()
    pids = up.next()["pids"]
    up.process.kill()
    up.process.communicate()
    wait_folder_free(up.state)
    began = monotonic()
    while left := [name for name, pid in pids.items() if not is_gone(pid)]:
        assert monotonic() - began < STOP_S, left


def test_stop(up: Up) -> None:
    """^C: everything ends within seconds and no process is left."""
    began = monotonic()
    assert up.stop() == 0
    took_s = monotonic() - began
    print(f"^C to the end: {took_s:.1f} s")
    assert took_s < 10
    assert [name for name, pid in up.ready["pids"].items() if not is_gone(pid)] == []
    wait_folder_free(up.state)
