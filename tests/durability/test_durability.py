"""The measurement itself: it sees what was lost, and says when a promise is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.durability.cases import CASES
from tests.durability.disk import is_there
from tests.durability.notes import Note, Notes, read
from tests.durability.report import Outcome, line
from tests.durability.run import date_losses, lost_ends, measure


def test_a_torn_note_is_not_read(tmp_path: Path) -> None:
    """A process that is killed while it writes has noted less, not something else."""
    path = tmp_path / "a.notes"
    Notes(path).add("admitted", ["p.1", "p.2"])
    path.write_text(path.read_text()[:-2])
    assert [one.request_id for one in read([path])] == ["p.1"]


def test_a_loss_breaks_a_promise() -> None:
    """Of an admission or of an end; where nothing is promised it is only told."""
    assert Outcome("always", promises=True).good
    assert not Outcome("always", promises=True, lost=1).good
    assert not Outcome("always", promises=True, ended_again=1).good
    assert Outcome("no", promises=False, lost=1).good
    assert not Outcome("no", promises=False, problems=["odd"]).good


def test_ends_that_came_twice_or_left_no_trace_were_lost() -> None:
    ends = [Note("ended", at, one) for at, one in [(1.0, "a"), (2.0, "b"), (3.0, "a"), (4.0, "c")]]
    states = {"a": "done", "b": "queued", "c": "done"}
    assert sorted(lost_ends(ends, states)) == [1.0, 2.0]


def test_each_loss_belongs_to_the_next_kill() -> None:
    outcome = Outcome("no", promises=False)
    date_losses(outcome, [0.5, 1.9, 2.0], killed=[1.0, 2.5, 9.0])
    assert outcome.losing_kills == 2
    assert outcome.oldest_lost_s == pytest.approx(0.6)
    outcome.admitted, outcome.lost = 5, 3
    assert line(outcome).endswith("in 2 kills, up to 0.60 s before the kill")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_a_setting_keeps_what_it_promises(
    case: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And where it promises nothing, the measurement sees the loss."""
    one = next(known for known in CASES if known is case)
    if one.is_preloaded and not is_there():
        pytest.skip("it takes Linux and a C compiler")
    outcome = measure(one, seed=1, kills=2, folder=tmp_path_factory.mktemp("disk"))
    assert outcome.good, outcome
    assert outcome.admitted > 1_000
    if one.name in ("nothing", "snapshots alone", "everysec, slow disk") or (
        one.power and not one.promises
    ):
        assert outcome.lost > 0
