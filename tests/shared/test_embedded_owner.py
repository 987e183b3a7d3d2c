"""The embedded server ends with the process that started it, whatever ends that."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from redis import Redis
from tests.servers import wait_folder_free

import forebay_shared
from forebay_shared.embedded import EmbeddedServer, FolderInUse, guard
from forebay_shared.embedded.tie import Tie, default_tie

OWNER = """
import sys
from pathlib import Path
from forebay_shared.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), tie=sys.argv[2])
print(server.start(), server.pid, flush=True)
sys.stdin.read()
"""
"""A process that owns an embedded server until it is killed or its standard input closes."""

TIES = ["guard"] + (["kernel"] if sys.platform == "linux" else [])


def start_owner(state_dir: Path, tie: Tie) -> tuple[subprocess.Popen[str], str]:
    """Starts a process that owns a server; returns it and the server's URL."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, state_dir, tie],
        env={**os.environ, "PYTHONPATH": str(Path(forebay_shared.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    return owner, owner.stdout.readline().split()[0]


@pytest.mark.parametrize("tie", TIES)
def test_server_ends_with_its_killed_owner(tmp_path: Path, tie: Tie) -> None:
    """A new start right after the kill waits for the old server and finds its data."""
    owner, url = start_owner(tmp_path, tie)
    with pytest.raises(FolderInUse):
        EmbeddedServer(tmp_path, lock_wait_s=0.05).start()
    Redis.from_url(url).set("key", "value")
    owner.kill()
    with EmbeddedServer(tmp_path, lock_wait_s=5) as server:
        assert Redis.from_url(server.url).get("key") == b"value"
    owner.communicate(timeout=5)  # returns when its error output closes: no guard is left either


@pytest.mark.parametrize("tie", TIES)
def test_server_ends_with_an_owner_that_forgot_it(tmp_path: Path, tie: Tie) -> None:
    owner, _ = start_owner(tmp_path, tie)
    owner.communicate()
    wait_folder_free(tmp_path)
    assert owner.returncode == 0


def test_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """The kernel's signal would come with the end of the thread, so another tie is chosen there."""
    server = EmbeddedServer(tmp_path)
    ties: list[Tie] = []
    for target in (server.start, lambda: ties.append(default_tie())):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    assert Redis.from_url(server.url).ping() and ties == ["guard"]
    server.stop()


def test_guard_lets_others_live_when_the_server_ends_first() -> None:
    """By then its pid may be somebody else's."""
    stranger = subprocess.Popen(["sleep", "60"])
    owner, _held_by_owner = os.pipe()
    life, held_by_server = os.pipe()
    os.close(held_by_server)
    guard.watch(stranger.pid, owner, life)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
    for fd in (owner, _held_by_owner, life):
        os.close(fd)


def test_ctrl_c_does_not_reach_the_server(tmp_path: Path) -> None:
    """It has a session of its own: who uses it drains first, and stops it last."""
    with EmbeddedServer(tmp_path) as server:
        assert server.pid and os.getsid(server.pid) == server.pid != os.getsid(0)
