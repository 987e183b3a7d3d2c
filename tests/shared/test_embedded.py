"""The embedded server: private, one on a folder, gone with its owner, its data there again."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.servers import wait_folder_free

from forebay_shared.embedded import (
    EmbeddedError,
    EmbeddedServer,
    FolderInUse,
    FolderUnusable,
    StartFailed,
    running_url,
)
from forebay_shared.embedded.folder import MAX_SOCKET_BYTES
from forebay_shared.embedded.process import LOG_BYTES, BoundedLog


@pytest.fixture
def started(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path, lock_wait_s=0.05) as server:
        yield server


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


# --- what it is


def test_settings_are_those_of_a_durable_private_server(started: EmbeddedServer) -> None:
    """Append-only file synced every second, nothing evicted, no TCP port, own socket."""
    names = "port", "appendonly", "appendfsync", "maxmemory-policy", "save", "unixsocketperm"
    assert client(started.url).config_get(*names) == {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": "",
        "unixsocketperm": "700",
    }


def test_nobody_else_can_enter(started: EmbeddedServer) -> None:
    for path in (Path(started.url.removeprefix("unix://")), started.log_path.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(started.log_path.stat().st_mode) == 0o600


def test_url_is_a_socket_in_the_state_folder(started: EmbeddedServer, tmp_path: Path) -> None:
    assert started.url == f"unix://{tmp_path}/redis/redis.sock" == running_url(tmp_path)


def test_data_is_there_at_the_next_start(tmp_path: Path) -> None:
    """`stop` returns when the server has ended, and the next one finds what it wrote."""
    server = EmbeddedServer(tmp_path)
    url = server.start()
    client(url).set("key", "value")
    pid = server.pid
    assert pid and server.alive
    server.stop()
    assert (server.pid, server.alive, running_url(tmp_path)) == (None, False, None)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with server:
        assert client(server.url).get("key") == b"value"


def test_relative_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with EmbeddedServer(Path("here & there")) as server:
        assert server.url.endswith("/here%20%26%20there/redis/redis.sock")
        assert client(server.url).ping()


def test_misuse_is_told(started: EmbeddedServer, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="already started"):
        started.start()
    with pytest.raises(EmbeddedError, match="not started"):
        _ = EmbeddedServer(tmp_path).url


# --- one server on a folder


def test_second_server_is_refused(started: EmbeddedServer, tmp_path: Path) -> None:
    """The error names the folder, the server that has it and how to reach that."""
    second = EmbeddedServer(tmp_path, lock_wait_s=0.05)
    with pytest.raises(FolderInUse) as caught:
        second.start()
    for fact in (str(tmp_path), f"pid {started.pid}", started.url):
        assert fact in str(caught.value)
    assert client(started.url).ping()


def test_attach_uses_the_running_server(started: EmbeddedServer, tmp_path: Path) -> None:
    """And leaves it alone at its own stop."""
    with EmbeddedServer(tmp_path, attach=True) as second:
        assert (second.url, second.pid) == (started.url, None)
    assert client(started.url).ping()


def test_attach_starts_where_none_runs(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, attach=True) as server:
        assert server.alive and running_url(tmp_path) == server.url


def test_killed_server_leaves_nothing_in_the_way(started: EmbeddedServer, tmp_path: Path) -> None:
    """Its socket and its lock file are still there, and its data is not lost."""
    client(started.url).set("key", "value")
    assert started.pid
    os.kill(started.pid, signal.SIGKILL)
    wait_folder_free(tmp_path)
    assert Path(started.url.removeprefix("unix://")).exists()
    assert running_url(tmp_path) is None
    with EmbeddedServer(tmp_path) as second:
        assert client(second.url).get("key") == b"value"


# --- what can be in the way


def test_long_path_gets_a_short_private_socket(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same one at each start, found by whoever asks without the same environment."""
    short = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    state_dir = tmp_path / ("long" * 25)
    with EmbeddedServer(state_dir) as server:
        path = Path(server.url.removeprefix("unix://"))
        assert path.parent.parent == short and len(os.fsencode(path)) <= MAX_SOCKET_BYTES
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert client(server.url).ping()
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert running_url(state_dir) == server.url


def test_folder_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    """A link is what an attacker can leave in /tmp; a file is what a user can name by mistake."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "redis").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()
    for state_dir in (tmp_path, tmp_path / "file"):
        with pytest.raises(FolderUnusable, match="FOREBAY_STATE"):
            EmbeddedServer(state_dir).start()


def test_open_folder_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir(mode=0o755)
    with EmbeddedServer(tmp_path) as server:
        assert stat.S_IMODE(server.log_path.parent.stat().st_mode) == 0o700


def test_broken_data_is_told_with_the_log(tmp_path: Path) -> None:
    """And the folder is free again."""
    with EmbeddedServer(tmp_path):
        pass
    manifest = tmp_path / "redis" / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("nonsense\n")
    for _ in range(2):
        with pytest.raises(StartFailed, match=r"(?s)exit code 1.*manifest"):
            EmbeddedServer(tmp_path).start()


def test_slow_start_is_given_up(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, start_wait_s=0)
    with pytest.raises(StartFailed, match="not ready after 0 s"):
        server.start()
    wait_folder_free(tmp_path)
    assert not server.alive and running_url(tmp_path) is None


def test_log_is_bounded(tmp_path: Path) -> None:
    """Two files at most, none above the limit, the newest lines in the first."""
    path = tmp_path / "server.log"
    log = BoundedLog(path)
    lines = [b"%06d" % number + b"." * 993 + b"\n" for number in range(3 * LOG_BYTES // 1000)]
    for line in lines:
        log.write(line)
    log.close()
    kept = sorted(tmp_path.iterdir())
    assert [each.name for each in kept] == ["server.log", "server.log.1"]
    assert all(each.stat().st_size <= LOG_BYTES for each in kept)
    assert path.read_bytes().endswith(lines[-1])


def test_log_is_continued_at_the_next_start(tmp_path: Path) -> None:
    for _ in range(2):
        with EmbeddedServer(tmp_path) as server:
            pass
    assert server.log_path.read_text().lower().count("ready to accept connections") >= 2
