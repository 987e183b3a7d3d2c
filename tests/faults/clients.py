"""Clients that ask, and note of each answer whether it was right."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import aiohttp
from tests.chaos.sse import messages
from tests.chaos.texts import expected_text
from tests.flow.system import System

CHAT = "/v1/chat/completions"
REFUSED = "503 redis_unavailable"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Said:
    """What a client was told: `right`, or status and code of an error; by the test's clock."""

    what: str
    asked_s: float
    heard_s: float
    retry_after: str = ""
    request_id: str = ""

    @property
    def waited_s(self) -> float:
        return self.heard_s - self.asked_s


def body_of(tokens: int, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    """A chat of exactly so many tokens; no two have the same prompt."""
    prompt = f"Story {next(_numbers)}"
    return {
        "model": "sim",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
        **more,
    }


async def ask(http: aiohttp.ClientSession, url: str, body: dict[str, Any], **headers: str) -> Said:
    """Ask once, without repeats; a broken connection is an answer too."""
    began_s = monotonic()
    try:
        async with http.post(url + CHAT, json=body, headers=headers) as answer:
            what = await _read(answer, body)
            retry_after = answer.headers.get("retry-after", "")
            request_id = answer.headers["x-request-id"]
    except (aiohttp.ClientError, OSError) as error:
        what, retry_after, request_id = type(error).__name__, "", ""
    return Said(what, began_s, monotonic(), retry_after, request_id)


async def _read(answer: aiohttp.ClientResponse, body: dict[str, Any]) -> str:
    if answer.status != 200:
        return f"{answer.status} {(await answer.json())['error']['code']}"
    text = await (_streamed(answer) if body["stream"] else _whole(answer))
    if text is None:
        return "200 error event"
    return "right" if text == expected_text(CHAT, body) else f"200 wrong: {text[:200]}"


async def _whole(answer: aiohttp.ClientResponse) -> str:
    return str((await answer.json())["choices"][0]["message"]["content"])


async def _streamed(answer: aiohttp.ClientResponse) -> str | None:
    """The text of a stream with a clean end; None where it ended otherwise."""
    parts: list[str] = []
    async for message in messages(answer):
        if message.data == "[DONE]":
            return "".join(parts)
        chunk = json.loads(message.data)
        if "error" in chunk:
            return None
        parts += [one["delta"].get("content") or "" for one in chunk["choices"]]
    return None


async def submit(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], **headers: str
) -> str:
    """Asynchronously; the request's id."""
    asynchronous = {"Prefer": "respond-async", **headers}
    async with http.post(url + CHAT, json=body, headers=asynchronous) as answer:
        assert answer.status == 202, await answer.text()
        return answer.headers["Location"].rpartition("/")[2]


@asynccontextmanager
async def crowd(
    system: System, http: aiohttp.ClientSession, count: int, tokens: int
) -> AsyncIterator[list[Said]]:
    """While the block runs, `count` clients ask and ask; every second one streams.

    After the block the list is complete: all have had their last answer.
    """
    said: list[Said] = []
    over = asyncio.Event()

    async def client(number: int) -> None:
        while not over.is_set():
            url = system.producers[number % len(system.producers)]
            said.append(await ask(http, url, body_of(tokens, stream=number % 2 == 1)))
            if said[-1].what != "right":
                await asyncio.sleep(0.05)  # an impatient client, but not a flood

    clients = [asyncio.create_task(client(number)) for number in range(count)]
    try:
        yield said
    finally:
        over.set()
        async with asyncio.timeout(20):
            await asyncio.gather(*clients)


def counts(said: list[Said]) -> Counter[str]:
    return Counter(one.what for one in said)


async def served(
    http: aiohttp.ClientSession, url: str, within_s: float = 5.0, tokens: int = 2
) -> float:
    """Ask until one is served; seconds until then. All refusals before must be honest ones."""
    began_s = monotonic()
    while (one := await ask(http, url, body_of(tokens))).what != "right":
        assert one.what == REFUSED, one
        assert 1 <= int(one.retry_after) <= 5, one
        assert monotonic() - began_s < within_s, one
    took_s = monotonic() - began_s
    assert took_s < within_s
    return took_s
