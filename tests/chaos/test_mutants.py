"""The harness can fail: broken copies of the product are found out. Slow: a run takes a minute."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.flow.processes import COMPONENTS, ROOT

LIBRARY = Path("shared/forebay_shared/library")
NO_FENCE = (
    "40_place.lua",
    "  if record.lease ~= worker .. '/' .. P.text(call) then return false end\n",
    "  if true then return true end\n",
)
NO_RESULT = (
    "50_end.lua",
    "  redis.call('SET', K.result(q, record.id), result, 'PX', q.settings.result_ttl_ms)\n",
    "",
)
NO_OFFSETS = (
    "64_hold.lua",
    "  for i = have - offset + 1, #chunks do\n    redis.call('XADD'",
    "  offset = have\n  for i = have - offset + 1, #chunks do\n    redis.call('XADD'",
)
NO_RECLAIM = (
    "66_sweep.lua",
    "  if q.now < P.get(q, 'quiet', 0) then return false end\n",
    "  if true then return false end\n",
)


def broken(folder: Path, file: str, sound: str, harm: str) -> Path:
    """A copy of the product with one line changed."""
    for component in COMPONENTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / component, folder / component, ignore=ignored)
    path = folder / LIBRARY / file
    text = path.read_text()
    assert text.count(sound) == 1, f"{file} has changed: {sound!r}"
    path.write_text(text.replace(sound, harm))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mutant", "name"),
    [
        pytest.param(NO_FENCE, "written by another than the lease's owner", id="no fence"),
        pytest.param(NO_RESULT, "a record has no result", id="acknowledged without a result"),
        pytest.param(NO_OFFSETS, "a stored text differs", id="chunks repeated"),
        pytest.param(NO_RECLAIM, "the queue did not drain", id="nothing reclaimed"),
    ],
)
def test_a_broken_product_is_found_out(
    tmp_path: Path, mutant: tuple[str, str, str], name: str
) -> None:
    product = broken(tmp_path / "product", *mutant)
    command = [sys.executable, "-m", "tests.chaos", "--short", "--seed", "11"]
    command += ["--product", str(product), "--keep", str(tmp_path / "run")]
    ran = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        said, _ = ran.communicate(timeout=200)
    finally:
        ran.terminate()  # in order: it takes its processes along
    assert ran.returncode == 1 and name in said, said
