"""docs/proofs.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
PAGE = TESTS.parent / "docs" / "proofs.md"
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE.read_text())))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    """Whoever renames a test is told where it is named."""
    file = TESTS / re.sub(r"^library/", "shared/library/", path)
    assert re.search(rf"^(async )?def {name}\(", file.read_text(), re.MULTILINE)


def test_every_rule_names_a_test() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert len(NAMED) > 100
    assert [row for row in rows if "::test_" not in row and row != "| rule | test |"] == []
