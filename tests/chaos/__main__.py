"""`scripts/chaos`: kills, pauses and cuts under load; then a checker judges what is left."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path

from tests.chaos.checker import check_folder
from tests.chaos.run import run
from tests.chaos.scene import SCENES
from tests.chaos.stage import Options
from tests.chaos.verdict import Verdict

SHORT_S = 40.0
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """0 where all held, else 1."""
    chosen = _parser().parse_args()
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="forebay-chaos-", dir="/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    length_s = SHORT_S if chosen.minutes is None else 60 * chosen.minutes
    options = Options(
        seed=chosen.seed,
        length_s=length_s,
        product=chosen.product.resolve(),
        scene=SCENES[chosen.engine],
        fsync=chosen.fsync,
        mixed=not chosen.one_release,
        only=tuple(chosen.only),
    )
    print(f"seed {options.seed}, {length_s:g} s of faults, in {folder}", flush=True)
    began_s = time.monotonic()
    asyncio.run(_until_told(run(folder, options)))
    verdict = check_folder(folder)
    verdict.figures["took (s)"] = round(time.monotonic() - began_s, 1)
    _tell(verdict, folder, chosen.json)
    if verdict.good and chosen.keep is None:
        shutil.rmtree(folder)
    return 0 if verdict.good else 1


async def _until_told(running: Coroutine[None, None, None]) -> None:
    """Run; SIGTERM ends it like Ctrl-C does, so that no process is left behind."""
    task = asyncio.ensure_future(running)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


def _tell(verdict: Verdict, folder: Path, file: Path | None) -> None:
    if file is not None:
        file.write_text(json.dumps(verdict.as_json(), indent=1) + "\n")
    print(verdict.text())
    if not verdict.good:
        print(f"history, state and logs: {folder}")
        print(
            f"again: scripts/chaos --seed {verdict.seed}; judge again: "
            f"python -m tests.chaos.checker {folder}"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--short", action="store_true", help="about a minute; the default")
    length.add_argument("--minutes", type=float, help="faults for so long")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--json", type=Path, help="write the report here, too")
    parser.add_argument("--keep", type=Path, help="history, state and logs go here, and stay")
    parser.add_argument(
        "--engine",
        choices=sorted(SCENES),
        default="sim",
        help="sim, or real vLLM on the CPU (run by scripts/chaos, which installs it)",
    )
    parser.add_argument(
        "--fsync",
        choices=("everysec", "always"),
        default="everysec",
        help="of Redis' append-only file: in memory with everysec, on the disk with always",
    )
    parser.add_argument(
        "--one-release",
        action="store_true",
        help="all processes run the same function library; else two, side by side",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="'kill worker'",
        help="deal only this kind of fault; may be repeated",
    )
    parser.add_argument(
        "--product", type=Path, default=ROOT, help="checkout whose producer, worker and shared run"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
