"""`forebay show` and `forebay cancel`."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Forebay
from tests.cli.fake import ID, FakeProducer, error, shown

PATH = f"/v1/requests/{ID}"
ANSWER = {"choices": [{"message": {"content": "Water."}}]}
DONE = shown(
    "done",
    started_at=1_001.0,
    ended_at=1_002.0,
    result={"status": 200, "reason": None, "body": ANSWER},
)


def test_a_waiting_request_says_why_it_waits(fake: FakeProducer, forebay: Forebay) -> None:
    """Place counts from one, as people do."""
    fake.scripts[f"GET {PATH}"] = lambda _: (200, shown(rank=4, waits_for="worker", attempts=1))
    result = forebay("show", "--url", fake.url, ID)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"id        {ID}",
        "state     queued",
        "class     normal",
        "model     sim",
        "place     5 in its class, by arrival",
        "waits     for a worker: none is alive",
        "failures  1 attempts, 0 crashes",
        "queued    2.5 s",
        "deadline  in 598 s",
    ]
    assert fake.asked[0].query == {}


def test_a_request_that_ended_shows_its_answer(fake: FakeProducer, forebay: Forebay) -> None:
    """The text, and how long it took."""
    fake.scripts[f"GET {PATH}"] = lambda _: (200, DONE)
    result = forebay("show", "--url", fake.url, ID)
    assert "queued    1.0 s\nran       1.0 s\n\nWater.\n" in result.stdout


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"choices": [{"text": "plain"}]}, "plain"),
        (error("It broke."), "It broke."),
        ({"data": [1]}, '"data": [\n    1'),
        ("not json", '"not json"'),
    ],
)
def test_results_of_every_kind(
    fake: FakeProducer, forebay: Forebay, body: object, told: str
) -> None:
    """Text where there is text, else the JSON."""
    value = DONE | {"result": {"status": 200, "reason": None, "body": body}}
    fake.scripts[f"GET {PATH}"] = lambda _: (200, value)
    result = forebay("show", "--url", fake.url, ID)
    assert result.exit_code == 0
    assert told in result.stdout


def test_wait_asks_again_until_the_end(fake: FakeProducer, forebay: Forebay) -> None:
    """The server holds each call for up to 30 s; `--json` gives the last one alone."""
    fake.scripts[f"GET {PATH}"] = lambda asked: (200, shown("running") if asked.count < 2 else DONE)
    result = forebay("show", "--url", fake.url, "--wait", "--json", ID)
    assert result.exit_code == 0
    assert json.loads(result.stdout) == DONE
    assert [one.query for one in fake.asked] == [{"wait": "30"}] * 3


def test_wait_fails_where_the_end_is_a_bad_one(fake: FakeProducer, forebay: Forebay) -> None:
    """Without --wait it is only shown."""
    bad = DONE | {"state": "expired"}
    fake.scripts[f"GET {PATH}"] = lambda _: (200, bad)
    assert forebay("show", "--url", fake.url, ID).exit_code == 0
    assert forebay("show", "--url", fake.url, "--wait", ID).exit_code == 1


@pytest.mark.parametrize("command", ["show", "cancel"])
def test_what_is_not_there_is_told(fake: FakeProducer, forebay: Forebay, command: str) -> None:
    """In the server's words; what cannot be an id is not even sent."""
    for method in ("GET", "DELETE"):
        fake.scripts[f"{method} {PATH}"] = lambda _: (404, error("There is no such request."))
    result = forebay(command, "--url", fake.url, ID)
    assert (result.exit_code, result.stderr) == (1, "Error: There is no such request.\n")
    result = forebay(command, "--url", fake.url, "../models")
    assert result.exit_code == 2
    assert "'../models' is not an id of a request" in result.stderr
    assert len(fake.asked) == 1


def test_cancel(fake: FakeProducer, forebay: Forebay) -> None:
    """Says so; with --json the request's state."""
    state = {"id": ID, "object": "request", "state": "cancelled"}
    fake.scripts[f"DELETE {PATH}"] = lambda _: (200, state)
    result = forebay("cancel", "--url", fake.url, ID)
    assert (result.exit_code, result.stdout) == (0, "cancelled\n")
    assert json.loads(forebay("cancel", "--url", fake.url, "--json", ID).stdout) == state


def test_cancel_too_late(fake: FakeProducer, forebay: Forebay) -> None:
    """What has ended keeps its state, and that is told."""
    fake.scripts[f"DELETE {PATH}"] = lambda _: (200, {"id": ID, "state": "done"})
    result = forebay("cancel", "--url", fake.url, ID)
    assert result.exit_code == 1
    assert result.stderr == "Error: the request has ended before: it is done\n"
