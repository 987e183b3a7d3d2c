"""Shifts the wall clock of the Python process that finds this file on its path.

Python imports `sitecustomize` before anything else. What a program reads by `time.time` is then
off by as many nanoseconds as the file CHAOS_CLOCK holds (a native 64-bit integer), at any moment:
who writes another number there makes the clock jump. Monotonic time, by which a program should
wait, stays as it is. On Linux the process also ends with the one that started it, even if that is
killed.
"""

import ctypes
import mmap
import os
import signal
import struct
import sys
import time

_SIZE = 8
_true_ns = time.time_ns


def _map_clock() -> mmap.mmap:
    """The file's bytes as they are now, not as they were when it was opened."""
    with open(os.environ["CHAOS_CLOCK"], "rb") as file:
        return mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_READ)


def _shift_clock() -> None:
    clock = _map_clock()

    def shifted_ns() -> int:
        shift_ns: int = struct.unpack_from("=q", clock)[0]
        return _true_ns() + shift_ns

    time.time_ns = shifted_ns
    time.time = lambda: shifted_ns() / 1e9


_PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if "CHAOS_CLOCK" in os.environ:
    _shift_clock()
