"""`forebay submit PROMPT`: what is sent, and what reaches the terminal."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Forebay
from tests.cli.fake import ID, FakeProducer, Reply, delta, error, events, models

CHAT = "POST /v1/chat/completions"
WHOLE = {"id": "chatcmpl-1", "choices": [{"message": {"content": "café 🙂"}}]}


def test_the_answer_streams_to_stdout(fake: FakeProducer, forebay: Forebay) -> None:
    """The pieces one after another, and a line feed at the end; nothing else."""
    fake.scripts[CHAT] = lambda _: events(delta("To be"), delta(" or n"), delta("ot"), "[DONE]")
    result = forebay("submit", "--url", fake.url, "Say it")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "To be or not\n", "")
    (asked,) = fake.of("POST", "/v1/chat")
    assert asked.json() == {
        "model": "sim",
        "messages": [{"role": "user", "content": "Say it"}],
        "stream": True,
    }


def test_options_travel(fake: FakeProducer, forebay: Forebay) -> None:
    """Class, limit, model and key; a named model is not looked up."""
    fake.scripts[CHAT] = lambda _: events(delta("x\n"), "[DONE]")
    words = ("--class", "high", "--max-tokens", "7", "--model", "big", "--api-key", "sk-1")
    result = forebay("submit", "--url", fake.url + "/v1/", *words, "Hi")
    assert result.stdout == "x\n"
    (asked,) = fake.asked
    assert asked.headers["x-priority"] == "high"
    assert asked.headers["authorization"] == "Bearer sk-1"
    assert (asked.json()["model"], asked.json()["max_tokens"]) == ("big", 7)


def test_the_prompt_may_come_from_stdin(fake: FakeProducer, forebay: Forebay) -> None:
    """And url and key from the environment."""
    fake.scripts[CHAT] = lambda _: events(delta("x"), "[DONE]")
    result = forebay("submit", input="Hé\n", FOREBAY_URL=fake.url, FOREBAY_API_KEY="sk-2")
    assert result.exit_code == 0
    asked = fake.of("POST", "/v1/chat")[0]
    assert asked.json()["messages"][0]["content"] == "Hé\n"
    assert asked.headers["authorization"] == "Bearer sk-2"


def test_json_is_the_answer_as_the_engine_gave_it(fake: FakeProducer, forebay: Forebay) -> None:
    """Asked for whole, printed as one document."""
    fake.scripts[CHAT] = lambda _: (200, WHOLE)
    result = forebay("submit", "--url", fake.url, "--json", "Hi")
    assert json.loads(result.stdout) == WHOLE
    assert "stream" not in fake.of("POST", "/v1/chat")[0].json()


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_async_prints_the_id(fake: FakeProducer, forebay: Forebay, words: tuple[str, ...]) -> None:
    """And does not wait."""
    fake.scripts[CHAT] = lambda _: (202, {"id": ID, "object": "request", "state": "queued"})
    result = forebay("submit", "--url", fake.url, "--async", *words, "Hi")
    told = json.loads(result.stdout)["id"] if words else result.stdout.strip()
    assert told == ID
    assert fake.of("POST", "/v1/chat")[0].headers["prefer"] == "respond-async"


def test_a_refusal_says_when_to_come_back(fake: FakeProducer, forebay: Forebay) -> None:
    """In the server's words, rounded to a second."""
    fake.scripts[CHAT] = lambda _: (503, error("The queue is full."), {"Retry-After": "7"})
    result = forebay("submit", "--url", fake.url, "Hi")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: The queue is full. (come back in 7 s)\n"


def test_a_missing_key_is_told(fake: FakeProducer, forebay: Forebay) -> None:
    """With the option that gives one."""
    fake.scripts["GET /v1/models"] = lambda _: (401, error("You need an API key."))
    result = forebay("submit", "--url", fake.url, "Hi")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: You need an API key. (give the key with --api-key or in FOREBAY_API_KEY)\n"
    )


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (lambda _: events(delta("a"), json.dumps(error("It broke."))), "broke off: It broke."),
        (lambda _: events(delta("a")), "broke off without an end"),
        (lambda _: events("{"), "not made of JSON"),
    ],
)
def test_a_broken_stream_is_an_error(
    fake: FakeProducer, forebay: Forebay, reply: Reply, told: str
) -> None:
    """A clean close without [DONE] too: half an answer must not look like one."""
    fake.scripts[CHAT] = reply  # type: ignore[assignment]
    result = forebay("submit", "--url", fake.url, "Hi")
    assert result.exit_code == 1
    assert told in result.stderr


def test_no_model_is_told(fake: FakeProducer, forebay: Forebay) -> None:
    """Before any worker has come."""
    fake.scripts["GET /v1/models"] = models()
    result = forebay("submit", "--url", fake.url, "Hi")
    assert result.exit_code == 1
    assert "no worker has registered a model yet" in result.stderr


def test_a_model_that_is_served_now_goes_first(fake: FakeProducer, forebay: Forebay) -> None:
    """Models stay listed for a day after their last worker has gone."""
    rows = [{"id": "gone", "created": 1_000}, {"id": "here", "created": 9_000}]
    fake.scripts["GET /v1/models"] = lambda _: (200, {"object": "list", "data": rows})
    fake.scripts[CHAT] = lambda _: events(delta("x"), "[DONE]")
    forebay("submit", "--url", fake.url, "Hi")
    assert fake.of("POST", "/v1/chat")[0].json()["model"] == "here"


@pytest.mark.parametrize("value", [[], {"object": "list"}, "x"])
def test_json_of_something_else_is_told(
    fake: FakeProducer, forebay: Forebay, value: object
) -> None:
    """A server that speaks JSON, but not ours."""
    fake.scripts["GET /v1/models"] = lambda _: (200, value)
    result = forebay("submit", "--url", fake.url, "Hi")
    assert result.exit_code == 1
    assert "not a producer's; does --url name one?" in result.stderr


def test_nobody_there_is_told(forebay: Forebay) -> None:
    """With the command that helps, and no trace."""
    result = forebay("submit", "--url", "http://127.0.0.1:1", "Hi")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: no producer answers at http://127.0.0.1:1; start one with `forebay up`, "
        "or name it with --url or in FOREBAY_URL\n"
    )


def test_something_else_there_is_told(fake: FakeProducer, forebay: Forebay) -> None:
    """A server that is no producer."""
    fake.scripts["GET /v1/models"] = lambda _: events()
    result = forebay("submit", "--url", fake.url, "Hi")
    assert result.exit_code == 1
    assert "is not JSON; does --url name a producer?" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--url", "localhost:8000", "Hi"), "is not a URL like http://127.0.0.1:8000"),
        (("--url", "ftp://x", "Hi"), "is not a URL like"),
        ((" ",), "The prompt is empty"),
        (("--output", "x", "Hi"), "--output goes with --file"),
        (("--file", "README.md", "Hi"), "a PROMPT does not go with --file"),
        (("--file", "README.md", "--async"), "--async does not go with --file"),
        (("--file", "nowhere.jsonl"), "does not exist"),
        (("--max-tokens", "0", "Hi"), "0 is not in the range"),
    ],
)
def test_bad_input_has_code_2(forebay: Forebay, words: tuple[str, ...], told: str) -> None:
    """And a sentence that says what is wrong with it."""
    result = forebay("submit", *words)
    assert result.exit_code == 2
    assert told in result.stderr
