"""`scripts/durability`: kills Redis under load, and counts what it lost of what it acknowledged."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

from tests.durability.cases import CASES
from tests.durability.disk import is_there
from tests.durability.report import HEAD, Outcome, line
from tests.durability.run import measure


def main() -> int:
    """0 where each setting kept what it promises, else 1."""
    chosen = _parser().parse_args()
    seed = chosen.seed if chosen.seed is not None else random.randrange(1_000_000)
    print(f"seed {seed}\n{HEAD}", flush=True)
    outcomes: list[Outcome] = []
    for case in CASES:
        if chosen.only and case.name not in chosen.only:
            continue
        if case.is_preloaded and not is_there():
            print(f"{case.name:<22} not measured: it takes Linux and a C compiler")
        else:
            kills = min(case.kills, chosen.kills or case.kills)
            outcomes.append(measure(case, seed, kills, chosen.folder))
            print(line(outcomes[-1]), flush=True)
    good = all(one.good for one in outcomes)
    if chosen.json is not None:
        rows = [one.as_json() for one in outcomes]
        report = {"seed": seed, "good": good, "cases": rows}
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    print("good" if good else "BAD")
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/durability", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the moments of the kills; drawn if not said")
    parser.add_argument("--kills", type=int, help="at most so many a setting")
    parser.add_argument("--only", action="append", help="a setting's name; may be repeated")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="on the disk to use")
    parser.add_argument("--json", type=Path, help="write the report here, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
