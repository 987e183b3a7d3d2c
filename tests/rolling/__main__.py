"""`scripts/rolling-restarts`: replaces every process under load, again and again."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path

from tests.rolling.run import Report, run

RESTARTS = 30


def main() -> int:
    """0 where no client and no request noticed, else 1."""
    chosen = _parser().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="forebay-rolling-", dir="/tmp"))
    report = asyncio.run(_until_told(run(folder, chosen.restarts)))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    print(report.text())
    print("good" if report.good else f"BAD; logs are in {folder}")
    if report.good:
        shutil.rmtree(folder)
    return 0 if report.good else 1


async def _until_told(running: Coroutine[None, None, Report]) -> Report:
    """Run; SIGTERM ends it like Ctrl-C does, so that no process is left behind."""
    task = asyncio.ensure_future(running)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/rolling-restarts", description=__doc__)
    parser.add_argument(
        "--restarts", type=int, default=RESTARTS, help=f"of each process; {RESTARTS} if not said"
    )
    parser.add_argument("--json", type=Path, help="write the report here, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
