"""The same program on an SDK of the 1.x line and on the latest: the queue is not to be noticed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.flow.engines import EngineUnderTest
from tests.flow.system import System

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("sdk_program.py")
OLD = "openai==1.109.1"


@pytest.fixture(scope="session")
def old_sdk() -> Path:
    """A folder with an SDK of the 1.x line and what it needs, kept beside the environment."""
    folder = Path(sys.prefix) / f"sdk-{OLD.rpartition('=')[2]}"
    if not (folder / "openai").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), OLD]
        subprocess.run(command, check=True, timeout=150)
    return folder


async def run_program(url: str, model: str, sdk: Path | None) -> dict[str, Any]:
    """What the program printed, on the installed SDK or on the one in `sdk`."""
    env = os.environ | ({"PYTHONPATH": str(sdk)} if sdk else {})
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), f"{url}/v1", model,
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-2_000:]
    value: dict[str, Any] = json.loads(out)
    return value


@pytest.mark.parametrize("line", ["1.x", "latest"])
async def test_program_cannot_tell_the_queue_from_the_engine(
    shared_system: System, engine_urls: list[EngineUnderTest], old_sdk: Path, line: str
) -> None:
    """Models, chat, streams, usage, n, tools, response_format, completions, vLLM's own fields."""
    sdk, model = (old_sdk if line == "1.x" else None), engine_urls[0].model
    direct = await run_program(engine_urls[0].url, model, sdk)
    queued = await run_program(shared_system.producers[0], model, sdk)
    assert queued["said"] == direct["said"]
    assert queued["version"].startswith("1.") == (line == "1.x")
    assert (
        queued["said"]["stream"]["text"]["0"]
        == queued["said"]["chat"]["choices"][0]["message"]["content"]
    )
