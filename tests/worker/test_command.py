"""The command `work`: bad options get a clear error, and no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.flow.processes import Child, until
from tests.worker.desk import Desk

from forebay_worker.command import work

URL = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--redis", "http://x"], "redis://"),
        (["--redis", "redis://u:hunter2@h/0?bad=1"], "bad"),
        (["--engine", "vllm"], "http(s) URL"),
        (["--engine", "http://"], "http(s) URL"),
        (["--slots", "0"], "--slots"),
        (["--pool", "No Pool"], "pool's name"),
        (["--classes", "high,,low"], "class names"),
        (["--admin", "9000"], "HOST:PORT"),
        (["--admin", "h:99999"], "HOST:PORT"),
        (["--grace", "-1"], "--grace"),
        (["--engine-key", "hunter2"], "name of an environment variable"),
        (["--engine-key", "FOREBAY_EMPTY"], "name of an environment variable"),
        (["--sim-speed", "0"], "--sim-speed"),
        (["--sim-profile", "huge"], "--sim-profile"),
    ],
)
def test_bad_options_are_explained(arguments: list[str], says: str) -> None:
    """Exit code 2 and a message that names what to write instead."""
    runner = CliRunner(env={"FOREBAY_EMPTY": ""})
    outcome = runner.invoke(work, ["--redis", URL, *arguments])
    assert outcome.exit_code == 2
    assert says in outcome.output
    assert "hunter2" not in outcome.output


def test_help_explains_each_option() -> None:
    page = CliRunner().invoke(work, ["--help"]).output
    for option in work.params:
        assert option.opts[0] in page
        assert getattr(option, "help", "") is not None


@pytest.mark.anyio
async def test_a_class_that_the_pool_lacks_ends_the_start(desk: Desk, tmp_path: Path) -> None:
    """The worker says which class it cannot serve, and exits with a code that is not 0."""
    log = tmp_path / "worker.log"
    child = Child("forebay_worker", ["--redis", desk.url, "--classes", "nope"], log)

    async def ended() -> bool:
        return child.code is not None

    await until(ended, 10, "the worker ended")
    assert child.code == 1
    assert "nope" in log.read_text()
