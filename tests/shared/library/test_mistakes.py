"""The mistakes of scripts/mutants can be made: what they change still stands where they say."""

from __future__ import annotations

import pytest
from tests.model.mistakes import mistakes
from tests.model.sow import ROOT, only_file


@pytest.mark.parametrize("name", mistakes())
def test_a_mistake_can_be_made(name: str) -> None:
    """Each text once, and the tests that should see it exist."""
    mistake = mistakes()[name]
    assert all(only_file(ROOT, edit) for edit in mistake.edits)
    assert all((ROOT / path).is_file() for path in mistake.tests)
