"""One server process: its start, its log, its end, and that it never outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from forebay_shared.embedded.finder import EmbeddedError
from forebay_shared.embedded.tie import Tie, default_tie, die_with, start_guard

LOG_BYTES = 1 << 20
READY = b"ready to accept connections"  # logged by every version once its data is loaded


class StartFailed(EmbeddedError):
    """The server did not come up; the message holds its last words."""


class BoundedLog:
    """Appends lines to a file; past LOG_BYTES it starts anew and keeps one old file beside it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()

    def _open(self) -> IO[bytes]:
        # Nothing secret is logged, but the folder's contents are nobody else's business.
        return open(self._path, "ab", buffering=0, opener=lambda p, f: os.open(p, f, 0o600))

    def write(self, line: bytes) -> None:
        if self._file.tell() + len(line) > LOG_BYTES:
            self._file.close()
            os.replace(self._path, self._path.with_suffix(self._path.suffix + ".1"))
            self._file = self._open()
        self._file.write(line)

    def close(self) -> None:
        self._file.close()


class ServerProcess:
    """A child process running a server that logs to its standard output.

    It ends with this process, however this process ends. `keep_fds` are inherited by the server
    and stay open as long as it lives.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        log: Path,
        *,
        keep_fds: Sequence[int] = (),
        tie: Tie | None = None,
    ) -> None:
        self._log = BoundedLog(log)
        self._log_path = log
        self._last: deque[bytes] = deque(maxlen=12)
        self._spoke = threading.Event()
        self._ready = False
        self._guard: subprocess.Popen[bytes] | None = None
        self._child, self._said = self._spawn(command, keep_fds, tie or default_tie())
        self._pump = threading.Thread(target=self._copy_log, name="server-log", daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def wait_ready(self, wait_s: float) -> None:
        """Returns when the server has loaded its data and listens.

        Raises StartFailed, the process being gone, if it ends first or takes longer than `wait_s`.
        """
        try:
            self._spoke.wait(wait_s)
        except BaseException:  # a Ctrl-C while much data loads
            self.kill()
            raise
        if self._ready:
            return
        slow = self.alive and not self._spoke.is_set()
        self.kill()
        why = f"was not ready after {wait_s:g} s" if slow else f"ended with {self._ending()}"
        said = b"".join(self._last).decode(errors="replace").strip()
        raise StartFailed(f"the server {why}; end of its log {self._log_path}:\n{said}")

    def stop(self, grace_s: float = 10.0) -> None:
        """Lets the server write what it holds and end; kills it after `grace_s` seconds."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a stopped process would not see the first
        try:
            self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
        self._reap()

    def kill(self) -> None:
        """Ends the server as a crash would: nothing is written first."""
        self.send(signal.SIGKILL)
        self._reap()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; does nothing once the server has ended."""
        self._child.send_signal(number)

    def _reap(self) -> None:
        self._child.wait()
        self._pump.join()
        if self._guard is not None:
            self._guard.communicate()

    def _ending(self) -> str:
        code = self._child.wait()
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def _spawn(
        self, command: Sequence[str | os.PathLike[str]], keep_fds: Sequence[int], tie: Tie
    ) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        if tie == "kernel":
            return _popen(command, keep_fds, die_with(os.getpid()))
        life, held_by_server = os.pipe()
        try:
            child, said = _popen(command, [*keep_fds, held_by_server], None)
            # Killed between these two lines, the owner would leave the server behind.
            self._guard = start_guard(child.pid, life)
        finally:
            os.close(life)
            os.close(held_by_server)
        return child, said

    def _copy_log(self) -> None:
        """Ends when the server, the only writer of its standard output, is gone."""
        with self._said:
            for line in self._said:
                self._last.append(line)
                self._log.write(line)
                if READY in line.lower():
                    self._ready = True
                    self._spoke.set()
        self._log.close()
        self._spoke.set()


def _popen(
    command: Sequence[str | os.PathLike[str]],
    keep_fds: Sequence[int],
    before_exec: Callable[[], None] | None,
) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Returns the child and what it says."""
    reading, writing = os.pipe()
    # While we are stopped nobody reads: then the server shall lose log lines, not stand still.
    os.set_blocking(writing, False)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.STDOUT,
            pass_fds=keep_fds,
            preexec_fn=before_exec,
            start_new_session=True,  # a Ctrl-C at the terminal is for us; we stop the server last
        )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return child, open(reading, "rb")
