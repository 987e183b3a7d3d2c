"""A stream on real vLLM that is cut within a character goes on with that character whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from tests.flow.identities import assert_identities
from tests.flow.processes import until
from tests.flow.system import UNHURRIED, System, running
from tests.vllm.rig import VllmServer, reciter_server

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

TEXT = "The café says 🙂 to 日本, naïve 👩‍🚀 goes up.\n"
# Slots for all at once, though a worker takes but a quarter of them of what has crashed.
ROUNDS, STREAMS, SLOTS, TOKENS = 3, 8, 32, 1_300


@pytest.fixture
def reciter(tmp_path: Path) -> Iterator[VllmServer]:
    server = reciter_server(tmp_path)
    server.start()
    server.wait_ready()
    yield server
    server.stop()


class Reader:
    """One client of one stream."""

    def __init__(self) -> None:
        self.text = ""
        self.id = ""
        self.tokens = 0

    async def read(self, client: AsyncOpenAI, chat: bool) -> None:
        asked: dict[str, Any] = {
            "model": "reciter",
            "max_tokens": TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if chat:
            asked["messages"] = [{"role": "user", "content": "Recite 🙂"}]
            stream = await client.chat.completions.create(**asked)
        else:
            stream = await client.completions.create(prompt="Recite", **asked)
        async for chunk in stream:
            self._note(chunk, chat)

    def _note(self, chunk: Any, chat: bool) -> None:
        self.id = chunk.id.partition("-")[2]
        for choice in chunk.choices:
            self.text += (choice.delta.content if chat else choice.text) or ""
        if chunk.usage is not None:
            self.tokens = chunk.usage.completion_tokens


async def cut(system: System, client: AsyncOpenAI, url: str, letters: int, expected: str) -> bool:
    """Read until one stream has so many letters, kill all workers, and read on with new ones.

    The engine and its worker are far ahead of what the clients have read by then, perhaps at the
    end: whether any stream was cut.
    """
    readers = [Reader() for _ in range(STREAMS)]
    tasks = [
        asyncio.create_task(one.read(client, chat=n % 2 == 0)) for n, one in enumerate(readers)
    ]

    async def one_reads() -> bool:
        return any(len(one.text) >= letters for one in readers)

    await until(one_reads, 60, "a client reads", every_s=0.002)
    while system.working:
        system.working.pop().kill()
    await asyncio.gather(*[system.add_worker(url, "--slots", str(SLOTS)) for _ in range(2)])
    await asyncio.gather(*tasks)
    for one in readers:
        assert one.text == expected
        assert one.tokens == TOKENS
    shown = [await system.intake.show(one.id) for one in readers]
    return any(row is not None and row.takes > 1 for row in shown)


async def test_cut_within_a_character(tmp_path: Path, reciter: VllmServer) -> None:
    """All workers are killed in each round, and every text is the engine's own."""
    async with running(
        tmp_path, [reciter.url] * 2, producers=1, settings=UNHURRIED, slots=SLOTS
    ) as system:
        await system.know("reciter")
        async with AsyncOpenAI(api_key="-", base_url=f"{reciter.url}/v1") as client:
            answer = await client.completions.create(
                model="reciter", prompt="Recite", max_tokens=TOKENS, temperature=0
            )
        expected = answer.choices[0].text
        assert expected.startswith(TEXT * (TOKENS // 21))
        url = f"{system.producers[0]}/v1"
        async with AsyncOpenAI(api_key="-", base_url=url, max_retries=0) as client:
            cuts = [
                await cut(system, client, reciter.url, 1 + 4 * number, expected)
                for number in range(ROUNDS)
            ]
        assert any(cuts), "none was cut"
        ledger = await assert_identities(system)
        assert ledger["done"] == ROUNDS * STREAMS
