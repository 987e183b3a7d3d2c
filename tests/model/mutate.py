"""Sows one fault after the other into the library and tells which test turns red. By hand:

    python tests/model/mutate.py [name ...]

A fault that no test notices makes the script fail. Steps run first, the machine where they stay
green.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEPS = "tests/shared/library"
MACHINE = f"{STEPS}/test_machine.py"
SIZE = f"{STEPS}/test_memory.py"


def main(names: list[str]) -> int:
    sys.path[:0] = [str(ROOT), str(ROOT / "shared")]
    from tests.model.mutants import MUTANTS, mutated

    from forebay_shared.library import source

    for name in names or MUTANTS:
        mutated(source(), name)  # else a fault that cannot be sown would count as noticed
    survivors = [name for name in names or MUTANTS if not killed(name)]
    print(f"{len(names or MUTANTS) - len(survivors)} killed, {len(survivors)} alive: {survivors}")
    return len(survivors)


def killed(name: str) -> bool:
    """Whether the steps or the machine fail with this fault in the library."""
    steps = [STEPS, f"--ignore={MACHINE}", f"--ignore={SIZE}"]
    began = time.monotonic()
    by = fails(name, steps), fails(name, [MACHINE])
    took = f"{time.monotonic() - began:.0f} s"
    print(f"{name}: steps {by[0] or '-'}; machine {by[1] or '-'} ({took})", flush=True)
    return any(by)


def fails(name: str, paths: list[str]) -> str:
    """The first test that fails, or nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths]
    known = os.environ | {"FOREBAY_MUTANT": name}
    ran = subprocess.run(command, cwd=ROOT, env=known, capture_output=True, text=True, check=False)
    found = re.search(r"^(?:FAILED|ERROR) \S+::(\S+)", ran.stdout, re.MULTILINE)
    return found.group(1) if found else "" if ran.returncode == 0 else "?"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
