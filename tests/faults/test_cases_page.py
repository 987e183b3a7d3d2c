"""The page of fault cases names tests that exist, for every case."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tests.flow.processes import ROOT

PAGE = ROOT / "docs" / "fault-cases.md"
TESTS = ROOT / "tests"
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`( \(slow\))?")


def rows() -> list[tuple[str, str]]:
    """Case and tests of each row."""
    cells = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if "|" in line]
    kept = [row for row in cells if len(row) == 3 and row[0] != "case"]
    return [(case, tests) for case, _, tests in kept]


@cache
def slow_by_name(path: Path) -> dict[str, bool]:
    """The tests of a file, and whether they are left out of the default run altogether."""
    source = path.read_text()
    whole = re.search(r"^pytestmark = .*mark\.slow", source, re.MULTILINE) is not None
    return {
        node.name: whole or any("mark.slow" in ast.unparse(one) for one in bare(node))
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def bare(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Decorators that mark the whole test, not one of its parameters."""
    return [one for one in node.decorator_list if "parametrize" not in ast.unparse(one)]


@pytest.mark.parametrize(("case", "tests"), rows(), ids=lambda value: value[:40])
def test_every_case_has_tests_that_exist(case: str, tests: str) -> None:
    """Those that do not run by default are marked as such."""
    named = TEST.findall(tests)
    assert named and TEST.sub("", tests).strip() == "", f"{case}: {tests}"
    for file, name, slow in named:
        found = slow_by_name(TESTS / file)
        assert name in found, f"{file} has no {name}"
        assert found[name] == bool(slow), f"{name}: slow or not?"


def test_all_kinds_of_cases_are_there() -> None:
    """A page whose table is not read would have no rows to be wrong."""
    assert len(rows()) > 60
