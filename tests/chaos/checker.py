"""Judges a run by its history and the final state alone; nothing here talks to the system.

    python -m tests.chaos.checker FOLDER

repeats the judgement of a kept run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.chaos import answer_checks, checks, owner_checks, text_checks
from tests.chaos.case import Case
from tests.chaos.figures import add_figures
from tests.chaos.grant_checks import check_grants
from tests.chaos.history import Event, read_history
from tests.chaos.verdict import Verdict

HISTORY, STATE = "history.jsonl", "state.json"
CHECKS = (
    checks.check_run,
    checks.check_queue,
    checks.check_terminal,
    checks.check_identities,
    checks.check_told,
    checks.check_reasons,
    checks.check_left,
    text_checks.check_stored_texts,
    text_checks.check_client_texts,
    text_checks.check_streams,
    answer_checks.check_heads,
    answer_checks.check_usage,
    owner_checks.check_owners,
    add_figures,
    check_grants,
)


def check(events: Iterable[Event], state: dict[str, Any]) -> Verdict:
    """The verdict on a run with this history and final state."""
    case, verdict = Case(events, state), Verdict()
    for step in CHECKS:
        step(case, verdict)
    return verdict


def check_folder(folder: Path) -> Verdict:
    """The verdict on a run whose history and state are in `folder`."""
    return check(read_history(folder / HISTORY), json.loads((folder / STATE).read_text()))


if __name__ == "__main__":
    verdict = check_folder(Path(sys.argv[1]))
    print(verdict.text())
    sys.exit(not verdict.good)
