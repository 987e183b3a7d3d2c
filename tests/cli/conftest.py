"""A command line whose environment is empty of Forebay, and a producer that is played."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result
from tests.cli.fake import FakeProducer, models, serving

from forebay_shared.cli import main

Forebay = Callable[..., Result]


@pytest.fixture
def fake() -> Iterator[FakeProducer]:
    """A producer that serves the model `sim` and knows nothing else until told."""
    with serving() as running:
        running.scripts["GET /v1/models"] = models("sim", "other")
        yield running


@pytest.fixture
def forebay() -> Forebay:
    """Runs `forebay <words>`; `input` is its standard input."""
    absent = {name: None for name in os.environ if name.startswith("FOREBAY_")}

    def call(*words: str, input: str | None = None, **env: str) -> Result:  # noqa: A002
        return CliRunner().invoke(main, words, input=input, env={**absent, **env})

    return call
