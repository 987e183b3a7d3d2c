"""The harness can fail: broken copies of the product are found out. Slow: a run takes a minute."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.mutants import LIMIT_S, MUTANTS, make, run_mutant


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_can_be_made(tmp_path: Path, name: str) -> None:
    """What it changes still stands in the library."""
    make(MUTANTS[name], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_product_is_found_out(tmp_path: Path, name: str) -> None:
    run_mutant(name, tmp_path)
