"""What ends a child when its owner is killed: the kernel, or a guard process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Literal

from forebay_shared.embedded import guard

Tie = Literal["kernel", "guard"]
"""The kernel's parent-death signal (Linux), or a process that watches a pipe."""

_PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec nothing may be imported or looked up.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def default_tie() -> Tie:
    """The kernel's signal follows the thread that forked, and only the main one surely stays."""
    in_main = threading.current_thread() is threading.main_thread()
    return "kernel" if _libc is not None and in_main else "guard"


def die_with(owner_pid: int) -> Callable[[], None]:
    """For `preexec_fn`: the kernel sends SIGTERM to the child when its owner is gone."""

    def before_exec() -> None:
        assert _libc is not None
        if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) refused")
        if os.getppid() != owner_pid:  # the owner died before the call above
            os._exit(1)

    return before_exec


def start_guard(child_pid: int, life_fd: int) -> subprocess.Popen[bytes]:
    """A guard over the child; `life_fd` is a pipe's end that closes when the child is gone.

    It ends the child when its own stdin closes, which is ours to hold.
    """
    return subprocess.Popen(
        [sys.executable, "-IS", guard.__file__, str(child_pid), str(life_fd)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[life_fd],
        start_new_session=True,
    )
