"""`scripts/soak`: very many small requests through one pool; then nothing of them may be left."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.soak.run import Soaked, soak

REQUESTS = 1_000_000
WORKERS = 2


def main() -> int:
    """0 where nothing was left, else 1."""
    chosen = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-soak-", dir="/tmp") as folder:
        print(f"{chosen.requests} requests, {chosen.workers} workers", flush=True)
        soaked = asyncio.run(soak(Path(folder), chosen.requests, chosen.workers))
    _tell(soaked, chosen.json)
    return 0 if soaked.good else 1


def _tell(soaked: Soaked, file: Path | None) -> None:
    if file is not None:
        file.write_text(json.dumps(soaked.as_json(), indent=1) + "\n")
    print(soaked.text())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=WORKERS, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write the report here, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
