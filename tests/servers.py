"""Throwaway servers for tests: real ones, started in some 50 ms, gone with the process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from redis.asyncio import Redis

from forebay_shared.embedded.finder import check_server, find_server
from forebay_shared.embedded.folder import ServerFolder
from forebay_shared.embedded.process import ServerProcess

START_WAIT_S = 20.0


class Server:
    """A running server; `url` and the data folder stay the same over restarts."""

    def __init__(
        self, command: Sequence[str], url: str, log: Path, private: TemporaryDirectory[str]
    ) -> None:
        self.url = url
        self.log = log
        self._command = command
        self._private = private
        self._paused = False
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists and is not paused."""
        return self._process.alive and not self._paused

    def _start(self, extra: Sequence[str] = ()) -> ServerProcess:
        process = ServerProcess([*self._command, *extra], self.log)
        process.wait_ready(START_WAIT_S)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the server in order (SIGTERM), for good. May be called twice, and by `with`."""
        self._process.stop()
        self._private.cleanup()

    def kill(self) -> None:
        """Ends the server as a crash would (SIGKILL); `restart` brings it back."""
        self._process.kill()

    def pause(self) -> None:
        """Stops the process: connections stay open, nothing is answered."""
        self._process.send(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        self._process.send(signal.SIGCONT)
        self._paused = False

    def restart(self, extra: Sequence[str] = ()) -> None:
        """Stops the server if it runs, and starts it on the same data and address.

        Keys come back only if it was started with `extra=("--appendonly", "yes")`. Further
        options hold for this life alone.
        """
        self._process.stop()
        self._paused = False
        self._process = self._start(extra)


def start_server(
    folder: str | os.PathLike[str],
    *,
    binary: str | os.PathLike[str] | None = None,
    port: int | None = None,
    extra: Sequence[str] = (),
) -> Server:
    """Starts a server with its data in `folder` and returns when it answers.

    It listens on a private unix socket; with `port` on 127.0.0.1 instead (0 picks a free one).
    `extra` are options in the server's own words, the last of a kind wins. Nothing is persisted
    unless they say so.
    """
    found = find_server() if binary is None else check_server(Path(binary))
    # Not in `folder`: pytest's folders are longer than a socket's path may be.
    private = TemporaryDirectory(prefix="fb-", dir="/tmp", ignore_cleanup_errors=True)
    if port is None:
        path = Path(private.name) / "redis.sock"
        address, url = ["--port", "0", "--unixsocket", str(path)], f"unix://{path}"
    else:
        port = port or free_port()
        address, url = ["--port", str(port), "--bind", "127.0.0.1"], f"redis://127.0.0.1:{port}"
    basics = ["--dir", os.fspath(folder), "--appendonly", "no", "--save", "", "--daemonize", "no"]
    # Else a server that cannot save would refuse to end with us.
    basics += ["--shutdown-on-sigterm", "force"]
    command = [str(found.path), *address, *basics, *extra]
    return Server(command, url, Path(folder) / "server.log", private)


async def wait_blocked(server: Server, count: int) -> None:
    """Returns when `count` clients are blocked in the server; asks as fast as it answers."""
    async with asyncio.timeout(5), Redis.from_url(server.url) as observer:
        while (await observer.info("clients"))["blocked_clients"] != count:
            pass


def wait_folder_free(state_dir: Path) -> None:
    """Returns when no embedded server is left on the folder: its lock goes with its process."""
    folder = ServerFolder(state_dir)
    lock = folder.open_lock()
    free = folder.wait_lock(lock, 5)
    os.close(lock)
    assert free, f"still running: {folder.read_record()}"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
