"""Shifts the wall clock of the Python process that finds this file on its path.

Python imports `sitecustomize` before anything else. What a program reads by `time.time` is then
off by CHAOS_SKEW_S seconds; monotonic time, by which it should wait, stays as it is. On Linux the
process also ends with the one that started it, even if that is killed.
"""

import ctypes
import os
import signal
import sys
import time

_SHIFT_NS = int(float(os.environ.get("CHAOS_SKEW_S", "0")) * 1e9)
_true_ns = time.time_ns


def _shifted_ns() -> int:
    return _true_ns() + _SHIFT_NS


def _shifted() -> float:
    return _shifted_ns() / 1e9


_PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if _SHIFT_NS:
    time.time_ns = _shifted_ns
    time.time = _shifted
