"""A child of `forebay up`: kept running, ended in order, never left behind."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forebay_shared
from forebay_shared.cli.child import Child
from forebay_shared.cli.childlog import ChildLog, readable
from forebay_shared.cli.terminal import Problem
from forebay_shared.embedded.tie import Tie

pytestmark = pytest.mark.anyio

# The signal may come while `up` is being flushed: a second print would be a re-entrant one.
SERVE = """
import os, signal, sys
def stop(*_):
    os.write(1, b"stopping\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
while True:
    signal.pause()
"""
STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"no\\n"))
print("up", flush=True)
while True:
    signal.pause()
"""
LOCK = """
import fcntl
held = open({path!r}, "w")
fcntl.flock(held, fcntl.LOCK_EX)
"""
OWNER = """
import asyncio, os, sys
from forebay_shared.cli.child import Child
from forebay_shared.cli.childlog import ChildLog
child = Child("child", ["program"], dict(os.environ), ChildLog())
child.tie = sys.argv[1]
asyncio.run(child.keep())
"""
KILLED = "child ended (signal SIGKILL); it is started again"
TIES = ["guard"] + (["kernel"] if sys.platform == "linux" else [])


class Lines(ChildLog):
    """Keeps what the child says, and lets a test wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: asyncio.Queue[str] = asyncio.Queue()

    def write(self, name: str, line: bytes) -> None:
        self.queue.put_nowait(line.decode())

    def note(self, text: str) -> None:
        self.queue.put_nowait(text)

    async def next(self) -> str:
        async with asyncio.timeout(10):
            return await self.queue.get()


@pytest.fixture
def lines() -> Lines:
    return Lines()


def child(tmp_path: Path, program: str, lines: Lines) -> Child:
    """A child that runs the program as a module of its own."""
    (tmp_path / "program.py").write_text(program)
    return Child("child", ["program"], os.environ | {"PYTHONPATH": str(tmp_path)}, lines)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("tie", TIES)
async def test_it_runs_until_it_is_stopped(tmp_path: Path, lines: Lines, tie: Tie) -> None:
    """SIGTERM, its last words are heard, and it is gone."""
    one = child(tmp_path, SERVE, lines)
    one.tie = tie
    keeping = asyncio.create_task(one.keep())
    assert await lines.next() == "up"
    pid = one.pid
    assert pid is not None
    await one.stop(asyncio.Event())
    await keeping
    assert await lines.next() == "stopping"
    assert not is_alive(pid)


async def test_it_is_started_again(tmp_path: Path, lines: Lines) -> None:
    """After a crash, which is told."""
    one = child(tmp_path, SERVE, lines)
    one.first_pause_s = 0.05
    keeping = asyncio.create_task(one.keep())
    assert await lines.next() == "up"
    first = one.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await lines.next() == f"{KILLED} in 0.05 s"
    assert await lines.next() == "up"
    assert one.pid not in (first, None)
    await one.stop(asyncio.Event())
    await keeping


async def test_false_starts_end_it(tmp_path: Path, lines: Lines) -> None:
    """Three in a row: a fourth would not help."""
    one = child(tmp_path, "print('oh'); raise SystemExit(1)", lines)
    one.first_pause_s = 0.05
    with pytest.raises(Problem, match=r"child cannot start \(exit code 1\)"):
        await one.keep()
    told = [await lines.next() for _ in range(5)]
    assert told[::2] == ["oh"] * 3
    assert told[1::2] == [
        f"child ended (exit code 1); it is started again in {s} s" for s in (0.05, 0.1)
    ]
    assert lines.queue.empty()


async def test_bad_options_end_it_at_once(tmp_path: Path, lines: Lines) -> None:
    """They will be as bad the next time."""
    one = child(tmp_path, "raise SystemExit(2)", lines)
    with pytest.raises(Problem, match=r"child cannot start \(exit code 2\)"):
        await one.keep()


async def test_stop_does_not_wait_for_the_next_start(tmp_path: Path, lines: Lines) -> None:
    """As when ^C comes between two lives."""
    one = child(tmp_path, SERVE, lines)
    one.first_pause_s = 600
    keeping = asyncio.create_task(one.keep())
    assert await lines.next() == "up"
    assert one.pid is not None
    os.kill(one.pid, signal.SIGKILL)
    assert await lines.next() == f"{KILLED} in 600 s"
    async with asyncio.timeout(10):
        await one.stop(asyncio.Event())
        await keeping


async def test_in_a_hurry_it_is_told_again(tmp_path: Path, lines: Lines) -> None:
    """A second SIGTERM is how producer and worker are hurried."""
    one = child(tmp_path, STUBBORN, lines)
    keeping = asyncio.create_task(one.keep())
    assert await lines.next() == "up"
    hurry = asyncio.Event()
    stopping = asyncio.create_task(one.stop(hurry))
    assert await lines.next() == "no"
    hurry.set()
    assert await lines.next() == "no"
    assert one.pid is not None
    os.kill(one.pid, signal.SIGKILL)
    await asyncio.gather(stopping, keeping)


@pytest.mark.parametrize("tie", TIES)
def test_it_ends_with_its_owner(tmp_path: Path, tie: Tie) -> None:
    """Killed, the owner leaves nobody behind: a lock is free when the child that had it is gone."""
    lock = tmp_path / "lock"
    (tmp_path / "program.py").write_text(LOCK.format(path=str(lock)) + SERVE)
    shared = str(Path(forebay_shared.__file__).parents[1])
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tie],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), shared])},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert owner.stderr is not None
    assert owner.stderr.readline() == "child | up\n"
    with lock.open() as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        owner.kill()
        fcntl.flock(file, fcntl.LOCK_EX)
    owner.communicate()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            '{"time":"2025-01-02T03:04:05","level":"info","event":"serving","a":1,"b":"x y"}',
            "03:04:05Z serving a=1 b=x y",
        ),
        (
            '{"time":"2025-01-02T03:04:05","level":"error","event":"failed","trace":"A\\nB"}',
            "03:04:05Z ERROR failed\nA\nB",
        ),
        ("plain words", "plain words"),
        ('{"event": 1}', '{"event": 1}'),
        ("[1]", "[1]"),
    ],
)
def test_log_events_are_shown_in_words(line: str, shown: str) -> None:
    """Whatever else a child says is shown as it is."""
    assert readable(line.encode()) == shown


def test_lines_can_be_held_back(capsys: pytest.CaptureFixture[str]) -> None:
    """While an answer streams to the same terminal."""
    log = ChildLog()
    log.write("worker 1", b"one")
    log.hold()
    log.write("worker 1", b"two")
    assert capsys.readouterr().err == "worker 1 | one\n"
    log.release()
    log.release()
    assert capsys.readouterr().err == "worker 1 | two\n"
