"""Broken copies of the product that a chaos run must find out, each by name.

    python -m tests.chaos.mutants "no fence"

runs one, and exits with 0 where it is found out by the finding that names it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.library_copy import LIBRARY, copy_product
from tests.flow.processes import ROOT

SEED = 11
LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """`sound` stands once in a file of the library and becomes `harm`; `finding` tells."""

    file: str
    sound: str
    harm: str
    finding: str


MUTANTS: Mapping[str, Mutant] = {
    "no fence": Mutant(
        "40_place.lua",
        "  if record.lease ~= worker .. '/' .. P.text(call) then return false end\n",
        "  if true then return true end\n",
        "written by another than the lease's owner",
    ),
    "acknowledged without a result": Mutant(
        "50_end.lua",
        "  redis.call('SET', K.result(q, record.id), result, 'PX', q.settings.result_ttl_ms)\n",
        "",
        "a record has no result",
    ),
    "chunks repeated": Mutant(
        "64_hold.lua",
        "  for i = have - offset + 1, #chunks do\n    redis.call('XADD'",
        "  offset = have\n  for i = have - offset + 1, #chunks do\n    redis.call('XADD'",
        "a stored text differs",
    ),
    "nothing reclaimed": Mutant(
        "56_blame.lua",
        "  if q.now < P.get(q, 'quiet', 0) then return false end\n",
        "  if true then return false end\n",
        "the queue did not drain",
    ),
}


class NotFoundOut(Exception):
    """The run was called good, or bad for other reasons."""


def make(mutant: Mutant, folder: Path) -> Path:
    """A copy of the product in `folder` with one text of its library changed."""
    path = copy_product(ROOT, folder) / LIBRARY / mutant.file
    text = path.read_text()
    if text.count(mutant.sound) != 1:
        raise ValueError(f"{mutant.file} has changed: {mutant.sound!r}")
    path.write_text(text.replace(mutant.sound, mutant.harm))
    return folder


def run_mutant(name: str, folder: Path) -> None:
    """Run chaos on the mutant of this name. Raises NotFoundOut with what the run said."""
    product = make(MUTANTS[name], folder / "mutant")
    command = [sys.executable, "-m", "tests.chaos", "--short", "--seed", str(SEED)]
    command += ["--product", str(product), "--keep", str(folder / "run")]
    ran = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        said, _ = ran.communicate(timeout=LIMIT_S)
    finally:
        ran.terminate()  # in order: it takes its processes along
    if ran.returncode != 1 or MUTANTS[name].finding not in said:
        raise NotFoundOut(said)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="forebay-mutant-", dir="/tmp") as place:
        run_mutant(sys.argv[1], Path(place))
