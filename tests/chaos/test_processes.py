"""What the nemesis does to processes does what it says."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

from tests.chaos.library_copy import other_release, product_in
from tests.chaos.processes import SKEW
from tests.flow.processes import COMPONENTS, ROOT

TELL = """
import sys, time
for _ in sys.stdin:
    print(time.time(), flush=True)
"""


def test_a_running_process_reads_another_clock_at_once(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("=q", int(600e9)))
    env = os.environ | {"PYTHONPATH": str(SKEW), "CHAOS_CLOCK": str(clock)}
    asked = subprocess.Popen(
        [sys.executable, "-c", TELL],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert asked.stdin is not None and asked.stdout is not None
    with asked:

        def ask() -> float:
            assert asked.stdin is not None and asked.stdout is not None
            asked.stdin.write("\n")
            asked.stdin.flush()
            return float(asked.stdout.readline())

        early = ask()
        with clock.open("r+b") as file:
            file.write(struct.pack("=q", int(-600e9)))
        late = ask()
    assert -1_200 <= late - early < -1_190


def test_the_other_release_has_another_library_that_says_the_same(tmp_path: Path) -> None:
    other = other_release(ROOT, tmp_path / "other")
    assert other.library != product_in(ROOT).library
    command = [sys.executable, "-c", "from forebay_shared.library import source; print(source())"]
    sources = []
    for folder in (ROOT, other.folder):
        path = os.pathsep.join(str(folder / component) for component in COMPONENTS)
        env = os.environ | {"PYTHONPATH": path}
        said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        sources.append([line for line in said.splitlines() if not line.startswith("--")])
    ours, theirs = sources
    assert ours != theirs  # the names of all functions differ
    assert len(ours) == len(theirs)
