"""What a newcomer installs, reads and copies is true: the wheel, the compose file, the README."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        return archive.namelist()


def test_the_wheel_installs_only_names_of_our_own(wheel: list[str]) -> None:
    """A top-level `shared` or `worker` would break other people's code."""
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.startswith("forebay")} == set()


def test_the_wheel_has_what_is_not_python(wheel: list[str]) -> None:
    """The function library and the type markers are data, easily left behind."""
    library = (ROOT / "shared" / "forebay_shared" / "library").glob("*.lua")
    wanted = {f"forebay_shared/library/{path.name}" for path in library}
    wanted |= {f"forebay_{part}/py.typed" for part in ("shared", "producer", "worker")}
    assert wanted - set(wheel) == set()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The services of compose.yaml."""
    services: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return services


def test_compose_gives_each_service_a_health_check(compose: dict[str, Any]) -> None:
    """In exec form, so that the image needs no shell."""
    checks = {name: service["healthcheck"]["test"] for name, service in compose.items()}
    assert {name: test for name, test in checks.items() if test[0] != "CMD"} == {}


def test_compose_gives_a_drain_more_time_than_its_grace(compose: dict[str, Any]) -> None:
    """Else Docker kills what still drains: 25 s of a worker, 10 min of a producer."""
    assert compose["worker"]["stop_grace_period"] == "35s"
    assert compose["producer"]["stop_grace_period"] == "11m"


def test_compose_runs_redis_that_keeps_requests(compose: dict[str, Any]) -> None:
    """An AOF, and no eviction."""
    line = " ".join(compose["redis"]["command"])
    assert "--appendonly yes" in line
    assert "--maxmemory-policy noeviction" in line


def test_compose_publishes_on_loopback_alone(compose: dict[str, Any]) -> None:
    """Without keys everybody who reaches a producer is the same tenant."""
    ports = [port for service in compose.values() for port in service.get("ports", [])]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def documented() -> list[str]:
    """Every `forebay …` command line that we tell people to run."""
    lines = re.findall(r"^forebay .+$", (ROOT / "README.md").read_text(), re.MULTILINE)
    lines += re.findall(r"^\| `(forebay [^`]+)`", (ROOT / "README.md").read_text(), re.MULTILINE)
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    for name in ("producer", "worker"):
        line = shlex.join(["forebay", *services[name]["command"]])
        lines.append(line.replace("'${FOREBAY_ENGINE:-sim}'", "sim"))
    return [*lines, "forebay up --ask text"]


@pytest.mark.parametrize("line", documented())
def test_documented_commands_exist(line: str) -> None:
    """The command line knows each command and each option that we tell people to type."""
    from forebay_shared.cli import main

    name, *arguments = shlex.split(line)[1:]
    command = main.get_command(click.Context(main), name)
    assert command is not None
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in arguments if word.startswith("--")} - known == set()


def test_links_in_the_docs_lead_somewhere() -> None:
    """Relative links of the README and the docs name files that exist."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
