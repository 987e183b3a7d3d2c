"""Makes one mistake after the other in a copy of the tree and tells which test turns red.

    scripts/mutants [--only NAME] [--jobs N] [--list]

A mistake that no test notices makes it fail. The tests run unharmed first, since a test that is red
anyway would notice everything.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from tests.model.mistakes import Edit, Mistake, mistakes

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = (".", "shared", "producer", "worker")
LIMIT_S = 120
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?: - |$)", re.MULTILINE)


class NotSown(Exception):
    """The text that a mistake changes does not stand there, or not once."""


def main() -> int:
    options = _options()
    known = mistakes()
    chosen = {name: one for name, one in known.items() if options.only in ("", name)}
    if options.list:
        print("\n".join(known))
        return 0
    if not chosen:
        print(f"there is no mistake {options.only!r}; --list names them")
        return 2
    with TemporaryDirectory(prefix="fb-mutants-", dir="/tmp") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(_copy(Path(folder) / str(number)))
        red = _red_unharmed(Path(folder) / "0", chosen.values())
        if red:
            print(f"red without any mistake: {red}")
            return 2
        return _sow_all(chosen, trees, options.jobs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAME", help="make this mistake alone")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at a time")
    parser.add_argument("--list", action="store_true", help="name the mistakes and end")
    return parser.parse_args()


def _copy(tree: Path) -> Path:
    """The files of the project as they are now, in a new folder."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def _red_unharmed(tree: Path, chosen: Iterable[Mistake]) -> str:
    tests = dict.fromkeys(path for one in chosen for path in one.tests)
    return _first_red(tree, list(tests), limit_s=10 * LIMIT_S)


def _sow_all(chosen: dict[str, Mistake], trees: SimpleQueue[Path], jobs: int) -> int:
    def sow(name: str) -> bool:
        tree, began = trees.get(), time.monotonic()
        try:
            with _made(tree, chosen[name].edits):
                red = _first_red(tree, chosen[name].tests)
            told = red or "ALIVE"
        except NotSown as error:
            red, told = "", f"NOT MADE: {error}"
        finally:
            trees.put(tree)
        print(f"{name:<48} {told:<90} {time.monotonic() - began:.0f} s", flush=True)
        return bool(red)

    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        seen = sum(pool.map(sow, chosen))
    print(f"{seen}/{len(chosen)} mistakes seen, {time.monotonic() - began:.0f} s")
    return 0 if seen == len(chosen) else 1


@contextmanager
def _made(tree: Path, edits: Sequence[Edit]) -> Iterator[None]:
    """The mistake stands in the tree. Raises NotSown."""
    before: dict[Path, str] = {}
    try:
        for edit in edits:
            path = only_file(tree, edit)
            before.setdefault(path, path.read_text())
            path.write_text(path.read_text().replace(edit.old, edit.new))
        yield
    finally:
        for path, text in before.items():
            path.write_text(text)


def only_file(tree: Path, edit: Edit) -> Path:
    """The file in which the text stands, once. Raises NotSown."""
    found = {path: path.read_text().count(edit.old) for path in tree.glob(edit.path)}
    if sum(found.values()) != 1:
        raise NotSown(f"{edit.path}: {edit.old!r} stands there {sum(found.values())} times")
    return next(path for path, count in found.items() if count)


def _first_red(tree: Path, tests: Sequence[str], limit_s: float = LIMIT_S) -> str:
    """The first test that fails, or nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=30"]
    # Else a file that was changed within a second would be taken from its compiled copy.
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "FOREBAY_EXAMPLES": "40"}
    env["PYTHONPATH"] = os.pathsep.join(str(tree / one) for one in COMPONENTS)
    try:
        ran = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return f"not done within {limit_s:g} s"
    if ran.returncode == 0:
        return ""
    found = FAILED.search(ran.stdout)
    return found.group(1) if found else "the run itself: " + ran.stdout[-300:].replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
