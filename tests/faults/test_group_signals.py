"""Signals for everybody at once: ^C at a terminal, and a supervisor that stops a whole group."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.faults.clients import ask, body_of, submit
from tests.flow.processes import COMPONENTS, ROOT
from tests.vllm.rig import free_port

from forebay_shared.calls import Intake, Library
from forebay_shared.connect import connect
from forebay_shared.embedded import EmbeddedServer

pytestmark = pytest.mark.anyio
END_S = 20.0


class Up:
    """`forebay up --json` in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "forebay_shared.cli", "up", "--json", "--slots", "4"]
        command += ["--port", str(self.port), "--state", str(folder / "state")]
        path = os.pathsep.join(str(ROOT / one) for one in COMPONENTS)
        self.log = folder / "up.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.pids: dict[str, int] = {}

    async def ready(self) -> None:
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        assert line, self.log.read_text()
        event: dict[str, Any] = json.loads(line)
        self.pids = event["pids"]

    async def code(self) -> int:
        assert self.process.stdout is not None
        await asyncio.to_thread(self.process.communicate, timeout=END_S)
        return self.process.returncode

    def to_group(self) -> None:
        """As a terminal does at ^C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def to_all(self) -> None:
        """As systemd does: the embedded server and the children first, to make it hard."""
        for pid in (*self.pids.values(), self.process.pid):
            os.kill(pid, signal.SIGTERM)


@pytest.fixture
def ups(tmp_path: Path) -> Iterator[list[Up]]:
    """Those that a test has started."""
    started: list[Up] = []
    yield started
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize(
    "how",
    [pytest.param(Up.to_group, marks=pytest.mark.slow), Up.to_all],
    ids=["^C", "SIGTERM to all"],
)
async def test_a_signal_for_everybody_loses_nothing(
    tmp_path: Path, ups: list[Up], http: aiohttp.ClientSession, how: Any
) -> None:
    """Open answers are finished before the end, and what was accepted beside them has ended or
    waits for the next start; nothing is blamed."""
    ids = await stopped_by(how, tmp_path, ups, http)
    with EmbeddedServer(tmp_path / "state") as server:
        async with connect(server.url) as redis:
            shown = [await Intake(Library(redis)).show(one) for one in ids]
    assert all(shown)
    assert {(one.attempts, one.crashes) for one in shown if one} == {(0, 0)}
    assert {one.state for one in shown if one} <= {"done", "queued"}


@pytest.mark.slow
async def test_what_was_left_ends_after_the_next_start(
    tmp_path: Path, ups: list[Up], http: aiohttp.ClientSession
) -> None:
    ids = await stopped_by(Up.to_all, tmp_path, ups, http)
    ups.append(Up(tmp_path))
    await ups[1].ready()
    for one in ids:
        async with http.get(f"{ups[1].url}/v1/requests/{one}?wait=20") as answer:
            seen = await answer.json()
        assert (seen["state"], seen["attempts"], seen["crashes"]) == ("done", 0, 0)
    ups[1].to_group()
    assert await ups[1].code() == 0


async def stopped_by(
    how: Callable[[Up], None], folder: Path, ups: list[Up], http: aiohttp.ClientSession
) -> list[str]:
    """Start, ask, submit, stop; the ids of what nobody waits for."""
    ups.append(Up(folder))
    await ups[0].ready()
    waiting = [
        asyncio.create_task(ask(http, ups[0].url, body_of(60, stream=stream)))
        for stream in (False, True)
    ]
    ids = [await submit(http, ups[0].url, body_of(60)) for _ in range(4)]
    how(ups[0])
    assert [one.what for one in await asyncio.gather(*waiting)] == ["right"] * 2
    assert await ups[0].code() == 0, ups[0].log.read_text()
    return ids
