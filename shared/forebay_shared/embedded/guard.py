"""Ends a server whose owner died, where the kernel does not: `guard.py SERVER_PID LIFE_FD`.

The owner holds the only writing end of this process's standard input, and the server the only
writing end of LIFE_FD; the kernel closes either when its holder is gone, whatever killed it. So
the guard knows that SERVER_PID still means the server when it signals it, and it leaves no process
behind when the server ends first. Runs as a plain file with the standard library only, so that it
needs no import path.
"""

from __future__ import annotations

import os
import select
import signal
import sys

GRACE_S = 10.0


def watch(server_pid: int, owner_fd: int, life_fd: int) -> None:
    """Returns when the server is gone, having ended it if its owner went first."""
    readable, _, _ = select.select([owner_fd, life_fd], [], [])
    if life_fd in readable:
        return
    os.kill(server_pid, signal.SIGTERM)
    readable, _, _ = select.select([life_fd], [], [], GRACE_S)
    if not readable:
        os.kill(server_pid, signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.stdin.fileno(), int(sys.argv[2]))
