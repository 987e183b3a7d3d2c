"""A process that is PID 1, as in a container, where the kernel forces no signal on it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.flow.processes import COMPONENTS, ROOT, until
from tests.worker.desk import Desk

from forebay_worker.drain import AFTER_GRACE_S

pytestmark = pytest.mark.anyio
BUSY_S = 2.0
"""A busy machine lets a process wait."""
UNSHARE = ("unshare", "--pid", "--fork", "--kill-child")
"""Its child is PID 1 of a namespace of its own; signals are sent to the child itself."""


def may_unshare() -> bool:
    """Linux asks for a right that tests may not have."""
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


class First:
    """`python -m <words>` as PID 1, or where that is not allowed behind `sh -c exec`."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        command = [sys.executable, "-m", *words]
        before = [*UNSHARE] if may_unshare() else ["sh", "-c", 'exec "$@"', "sh"]
        path = os.pathsep.join(str(ROOT / one) for one in COMPONENTS)
        with log.open("wb") as output:
            self.outer = subprocess.Popen(
                [*before, *command],
                env=os.environ | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Of the process itself: whoever made its namespace ignores signals, or passes none on."""
        children = Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children")
        inner = children.read_text().split() if children.exists() else []
        return int(inner[0]) if inner else self.outer.pid

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def handles(self, number: signal.Signals) -> bool:
        """Whether it has a handler for this signal."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        (caught,) = (line for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) >> number - 1 & 1)

    async def told(self, word: str, within_s: float) -> float:
        """Seconds until its log has the word."""

        async def holds() -> bool:
            assert self.outer.poll() is None, self.log.read_text()
            return word in self.log.read_text()

        return await until(holds, within_s, f"{word} in {self.log}")

    async def code(self, within_s: float) -> int:
        return await asyncio.to_thread(self.outer.wait, within_s)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., First]]:
    started: list[First] = []

    def call(*words: str) -> First:
        started.append(First(tmp_path / "first.log", *words))
        return started[-1]

    yield call
    for one in started:
        one.outer.kill()
        one.outer.wait()


@pytest.fixture
async def desk(redis_url: str) -> AsyncIterator[Desk]:
    one = Desk(redis_url)
    await one.open()
    yield one
    await one.close()


async def test_a_worker_as_pid_1_drains_at_once_and_a_second_signal_hurries(
    start: Callable[..., First], desk: Desk
) -> None:
    """It says so within a second, goes on with what runs, and leaves with 0 when told again."""
    first = start("forebay_worker", "--redis", desk.url, "--grace", "20")
    request_id = await desk.submit(body={"model": "sim", "min_tokens": 9_000})
    await desk.until(request_id, "running")
    first.send(signal.SIGTERM)
    await first.told("draining", 1)
    assert await desk.state(request_id) == "running"
    first.send(signal.SIGTERM)
    assert await first.code(AFTER_GRACE_S + BUSY_S) == 0
    shown = await desk.show(request_id)
    assert (shown.state, shown.attempts, shown.crashes) == ("queued", 0, 0)


async def test_a_producer_as_pid_1_drains_at_once(
    start: Callable[..., First], redis_url: str
) -> None:
    """It says so within a second, and leaves with 0 before its grace."""
    first = start("forebay_producer", "--redis", redis_url, "--port", "0", "--serve-on", "0.1")
    await first.told("pool_ready", 10)
    first.send(signal.SIGTERM)
    await first.told("draining", 1)
    assert await first.code(0.1 + AFTER_GRACE_S + BUSY_S) == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="handlers are seen in /proc")
@pytest.mark.parametrize("module", ["forebay_worker", "forebay_producer"])
async def test_as_pid_1_it_can_be_stopped_before_it_serves(
    start: Callable[..., First], redis_url: str, module: str
) -> None:
    """Most of its start is reading code; a signal that is ignored then comes only once."""
    first = start(module, "--redis", redis_url)

    async def handles() -> bool:
        return first.handles(signal.SIGTERM)

    await until(handles, 10, "SIGTERM is handled", every_s=0.005)
    assert first.log.read_text() == ""
    first.send(signal.SIGTERM)
    assert await first.code(AFTER_GRACE_S + BUSY_S) == 0


def test_the_image_has_no_shell_before_the_process() -> None:
    """A shell as PID 1 would keep signals to itself."""
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    (entry,) = (line for line in lines if line.startswith("ENTRYPOINT"))
    assert json.loads(entry.removeprefix("ENTRYPOINT")) == ["forebay"]
