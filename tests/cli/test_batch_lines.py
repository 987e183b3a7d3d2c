"""A batch file is checked whole before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Forebay
from tests.cli.fake import FakeProducer
from tests.cli.queue_played import BODY, row, written

from forebay_shared.cli.batch_lines import BadBatch, read_batch


def test_good_lines(tmp_path: Path) -> None:
    """In their order; empty lines are nothing; the body keeps fields that nobody here knows."""
    more = BODY | {"top_k": 3}
    path = written(tmp_path, row("a", body=more), "", row("b", url="/v1/embeddings"))
    first, second = read_batch(path, None)
    assert (first.custom_id, first.path, json.loads(first.body)) == (
        "a",
        "/v1/chat/completions",
        more,
    )
    assert (second.custom_id, second.path) == ("b", "/v1/embeddings")


def test_the_model_stands_in_where_none_is_named(tmp_path: Path) -> None:
    """And nowhere else."""
    path = written(tmp_path, row("a", body={"input": "x"}), row("b"))
    bodies = [json.loads(line.body)["model"] for line in read_batch(path, "big")]
    assert bodies == ["big", "sim"]


def test_names_are_stable_and_of_this_file(tmp_path: Path) -> None:
    """The same in each run; another file, even with the same line, has other names."""
    path = written(tmp_path, row("a"), row("b"))
    names = [line.name for line in read_batch(path, None)]
    assert [line.name for line in read_batch(path, None)] == names
    assert len(set(names)) == 2
    path.write_text(row("a") + "\n")
    assert read_batch(path, None)[0].name not in names


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('"\\ud800"', "not a JSON object"),
        (row(custom_id=""), "custom_id must be a string that is not empty"),
        (row(custom_id=None), "custom_id must be a string"),  # type: ignore[arg-type]
        (row(custom_id=7), "custom_id must be a string"),  # type: ignore[arg-type]
        (row(method="GET"), "method must be POST"),
        (row(url="/v1/models"), "url must be one of /v1/chat/completions"),
        (row(url=None), "url must be one of"),
        (row(url=["/v1/embeddings"]), "url must be one of"),
        (row(body=None), "body must be a JSON object"),
        (row(body=[]), "body must be a JSON object"),
        (row(body={"messages": []}), "body.model is missing; write it there or give --model"),
        (row(body=BODY | {"model": 3}), "body.model must be a string"),
        (row(body=BODY | {"stream": True}), "body.stream must not be set"),
        (row("ok"), "custom_id 'ok' is already that of line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, told: str) -> None:
    """With its number and what is wrong."""
    with pytest.raises(BadBatch) as raised:
        read_batch(written(tmp_path, row("ok"), bad), None)
    assert f"line 2: {told}" in raised.value.message
    assert raised.value.exit_code == 2


def test_all_errors_are_told_up_to_twenty(tmp_path: Path) -> None:
    """So that nobody mends one line at a time."""
    with pytest.raises(BadBatch) as raised:
        read_batch(written(tmp_path, *["{"] * 1_025), None)
    lines = raised.value.message.splitlines()
    assert len(lines) == 22
    assert lines[1].startswith("  line 1: ")
    assert lines[21] == "  and 1,005 more"


@pytest.mark.parametrize("raw", [b"", b"\n \n"])
def test_an_empty_file_is_told(tmp_path: Path, raw: bytes) -> None:
    """It is more likely a mistake than a batch."""
    path = tmp_path / "empty.jsonl"
    path.write_bytes(raw)
    with pytest.raises(BadBatch, match="has no requests"):
        read_batch(path, None)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    """A line is named for them too."""
    path = tmp_path / "latin.jsonl"
    path.write_bytes(row("ok").encode() + b'\n{"custom_id": "\xe9"}\n')
    with pytest.raises(BadBatch, match="line 2: not JSON"):
        read_batch(path, None)


def test_nothing_is_sent_from_a_bad_file(
    tmp_path: Path, fake: FakeProducer, forebay: Forebay
) -> None:
    """Exit code 2, no files, no calls."""
    path = written(tmp_path, row("a"), "{")
    result = forebay("submit", "--url", fake.url, "--file", str(path))
    assert result.exit_code == 2
    assert "nothing was sent; mend these lines:\n  line 2: not JSON" in result.stderr
    assert fake.asked == []
    assert [one.name for one in tmp_path.iterdir()] == ["batch.jsonl"]
