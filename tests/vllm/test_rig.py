"""The rig itself: a real vLLM server answers as OpenAI's client expects, and dies on demand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.vllm.rig import EngineDied, EngineServer, VllmServer, chat_server, embedding_server

pytestmark = pytest.mark.vllm

QUESTION = {"role": "user", "content": "What does a forebay do?"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmServer, VllmServer]]:
    """A chat server and an embedding server, started side by side."""
    pair = (
        chat_server(tmp_path_factory.mktemp("chat")),
        embedding_server(tmp_path_factory.mktemp("embedding")),
    )
    try:
        for server in pair:
            server.start()
        for server in pair:
            server.wait_ready()
        yield pair
    finally:
        for server in pair:
            server.stop()


def client(server: VllmServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_chat_answers_the_same_whole_and_streamed(
    servers: tuple[VllmServer, VllmServer],
) -> None:
    """At temperature 0 the stream's pieces make up the whole answer, in plain ASCII."""
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [QUESTION],
        "max_tokens": 40,
        "temperature": 0,
    }
    with client(servers[0]) as chat:
        whole = chat.chat.completions.create(**asked)
        chunks = list(chat.chat.completions.create(**asked, stream=True))
    text = whole.choices[0].message.content
    assert text and text.isascii()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 40
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_embeddings_tell_meanings_apart(servers: tuple[VllmServer, VllmServer]) -> None:
    """A real embedding model: 384 numbers of length 1, nearer for what means the same."""
    texts = ["A queue of people", "People waiting in line", "Cold mountain water"]
    with client(servers[1]) as embedding:
        answer = embedding.embeddings.create(model="minilm", input=texts)
    queue, line, water = (item.embedding for item in answer.data)
    assert len(queue) == 384
    assert dot(queue, queue) == pytest.approx(1, abs=1e-3)
    assert dot(queue, line) > dot(queue, water) + 0.2


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The error comes at once and carries the end of the log, instead of a time-out."""
    server = EngineServer([sys.executable, "-c", "exit('no such model')"], tmp_path / "log")
    server.start()
    with pytest.raises(EngineDied, match="no such model"):
        server.wait_ready()


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
