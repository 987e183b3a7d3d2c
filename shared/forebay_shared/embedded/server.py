"""The embedded server: Redis or Valkey as a child, with its data in the user's state folder."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from forebay_shared.embedded.finder import EmbeddedError, ServerBinary, find_server
from forebay_shared.embedded.folder import (
    FolderInUse,
    Record,
    ServerFolder,
    default_state_dir,
    running_url,
    socket_url,
)
from forebay_shared.embedded.process import ServerProcess
from forebay_shared.embedded.tie import Tie

LOCK_WAIT_S = 3.0
"""How long a start waits for a server that is going down, as after a kill of its owner."""


class EmbeddedServer:
    """A server of our own, without a TCP port, that nobody but this user can reach.

    It writes an append-only file, synced every second: what was acknowledged survives the death of
    any process, and a crash of the machine costs at most the last second or two. It ends with the
    process that started it, and its data is there at the next start.

    With `attach`, `start` uses the server that already runs on the folder, if one does, and `stop`
    leaves it alone.
    """

    def __init__(
        self,
        state_dir: Path | None = None,
        *,
        binary: ServerBinary | None = None,
        attach: bool = False,
        tie: Tie | None = None,
        start_wait_s: float = 60.0,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> None:
        self.state_dir = (state_dir or default_state_dir()).absolute()
        self._folder = ServerFolder(self.state_dir)
        self._binary = binary
        self._attach = attach
        self._tie = tie
        self._start_wait_s = start_wait_s
        self._lock_wait_s = lock_wait_s
        self._process: ServerProcess | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """`unix:///…/redis.sock`, once started."""
        if self._url is None:
            raise EmbeddedError("the embedded server is not started")
        return self._url

    @property
    def pid(self) -> int | None:
        """Of the child; None where there is none, as when attached."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the child still runs; False where there is none, as when attached."""
        return self._process is not None and self._process.alive

    @property
    def log_path(self) -> Path:
        return self._folder.log

    def start(self) -> str:
        """Starts the server and returns its URL when its data is loaded.

        Best called in the main thread: elsewhere an extra process has to watch over the child.
        Raises FolderInUse, FolderUnusable, NoServerFound or StartFailed.
        """
        if self._url is not None:
            raise EmbeddedError("the embedded server is already started")
        self._folder.prepare()
        lock = self._folder.open_lock()
        try:
            self._url = self._start_on(lock)
        finally:
            os.close(lock)  # the server has inherited it, and with it the lock
        return self._url

    def stop(self, grace_s: float = 10.0) -> None:
        """Lets the server write everything down and end; returns when it has. May be repeated."""
        if self._process is not None:
            self._process.stop(grace_s)
        self._process = self._url = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start_on(self, lock: int) -> str:
        for take in (self._folder.try_lock, self._wait_lock):
            if take(lock):
                return self._launch(lock)
            if self._attach and (running := running_url(self.state_dir)):
                return running
        raise FolderInUse(self._in_use())

    def _wait_lock(self, lock: int) -> bool:
        return self._folder.wait_lock(lock, self._lock_wait_s)

    def _launch(self, lock: int) -> str:
        binary = self._binary or find_server()
        socket = self._folder.socket_path()
        socket.unlink(missing_ok=True)  # of a killed server: we hold the lock, so it is nobody's
        self._folder.write_record(None)
        process = ServerProcess(
            [binary.path, *_options(self._folder.path, socket)],
            self._folder.log,
            keep_fds=[lock],
            tie=self._tie,
        )
        process.wait_ready(self._start_wait_s)
        url = socket_url(socket)
        self._folder.write_record(Record(process.pid, url))
        self._process = process
        return url

    def _in_use(self) -> str:
        record = self._folder.read_record()
        who = f"the server with pid {record.pid}" if record else "a server that is just starting"
        where = f"; reach it with --redis {record.url}" if record else ""
        return (
            f"the state folder {self.state_dir} is in use by {who}{where}. "
            "Stop that one, or set FOREBAY_STATE to another folder."
        )


def _options(data: Path, socket: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": os.fspath(socket),
        "unixsocketperm": "700",
        "dir": os.fspath(data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",  # the append-only file is the data; snapshots beside it would only cost
        "maxmemory-policy": "noeviction",
        "shutdown-on-sigterm": "force",  # a full disk must not keep it from ending with its owner
        "daemonize": "no",
        "loglevel": "notice",  # the line that says "ready" is of this level
        "logfile": "",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]
