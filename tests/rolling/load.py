"""Clients as people write them: the official SDK, with its default settings."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI, OpenAIError
from tests.chaos.texts import expected_text

CHAT = "/v1/chat/completions"
PROMPTS = 12
TOKENS = (20, 60)
"""Least and most: a quarter to a whole second on an engine of the fleet, well within the grace."""
PAUSE_S = 0.1
"""Between an answer and the next question: the processor is for the processes that start."""


@dataclass(slots=True)
class Tally:
    """What the clients saw. `errors` and `wrong` hold what each of them said."""

    answers: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def _body(number: int) -> dict[str, Any]:
    least, most = TOKENS
    return {
        "model": "sim",
        "messages": [{"role": "user", "content": f"Story {number % PROMPTS}"}],
        "max_tokens": least + number % PROMPTS * (most - least) // (PROMPTS - 1),
        "extra_body": {"ignore_eos": True},
    }


def _expected(body: dict[str, Any]) -> str:
    plain = {name: value for name, value in body.items() if name != "extra_body"}
    return expected_text(CHAT, {**plain, **body["extra_body"], "stream": False})


class Load:
    """`clients` that ask and ask until `stop`, each one its own SDK; every second one streams."""

    def __init__(self, url: str, clients: int) -> None:
        self.tally = Tally()
        self._url = url
        self._bodies = [_body(number) for number in range(PROMPTS)]
        self._texts = [_expected(body) for body in self._bodies]
        self._over = asyncio.Event()
        self._clients = [asyncio.create_task(self._client(number)) for number in range(clients)]

    async def stop(self, within_s: float = 60) -> None:
        """Let each have its last answer."""
        self._over.set()
        async with asyncio.timeout(within_s):
            await asyncio.gather(*self._clients)

    async def _client(self, number: int) -> None:
        kind = "stream" if number % 2 else "whole"
        async with AsyncOpenAI(base_url=f"{self._url}/v1", api_key="none") as sdk:
            at = number
            while not self._over.is_set():
                at = (at + 5) % PROMPTS
                await self._ask(sdk, kind, at)
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, sdk: AsyncOpenAI, kind: str, at: int) -> None:
        call = _streamed if kind == "stream" else _whole
        try:
            text = await call(sdk, self._bodies[at])
        except OpenAIError as error:
            self.tally.errors.append(f"{kind}: {type(error).__name__}: {error}")
            return
        self.tally.answers[kind] += 1
        if text != self._texts[at]:
            self.tally.wrong.append(f"{kind}: {text!r} instead of {self._texts[at]!r}")


async def _whole(sdk: AsyncOpenAI, body: dict[str, Any]) -> str:
    answer = await sdk.chat.completions.create(**body)
    return answer.choices[0].message.content or ""


async def _streamed(sdk: AsyncOpenAI, body: dict[str, Any]) -> str:
    parts: list[str] = []
    finished = False
    async for chunk in await sdk.chat.completions.create(stream=True, **body):
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            finished = finished or choice.finish_reason is not None
    return "".join(parts) if finished else "".join(parts) + " (unfinished)"
