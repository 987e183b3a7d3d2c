"""200 mixed requests at once: each answered once, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import aiohttp
import pytest
from tests.flow.identities import assert_identities, keys_without_ttl
from tests.flow.processes import until
from tests.flow.system import System

pytestmark = pytest.mark.anyio

COUNT = 200
CLASSES = ("high", "normal", "low", "background")


def body_of(number: int, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "max_tokens": 4 + number % 24, "temperature": 0}
    if number % 3 == 0:
        return body | {"prompt": f"Number {number} of many"}
    return body | {"messages": [{"role": "user", "content": f"Number {number} of many"}]}


async def ask(client: aiohttp.ClientSession, url: str, number: int, model: str) -> str:
    """One request, streamed if its number is even: `done`, or what went wrong."""
    body = body_of(number, model) | {"stream": number % 2 == 0}
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    headers = {"X-Priority": CLASSES[number % 4]}
    async with client.post(url + path, json=body, headers=headers) as answer:
        raw = await answer.read()
    if answer.status != 200:
        return f"{answer.status} {raw[:200]!r}"
    if not body["stream"]:
        return "done" if json.loads(raw)["choices"][0]["finish_reason"] else "unfinished"
    return "done" if raw.endswith(b"data: [DONE]\n\n") and b'"error"' not in raw else "broken"


async def test_all_are_answered_once(system: System, model: str) -> None:
    """Streamed and not, chat and completions, all classes, two replicas, two engines."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        said = await asyncio.gather(
            *[ask(client, system.producers[n % 2], n, model) for n in range(COUNT)]
        )
    assert Counter(said) == {"done": COUNT}
    ledger = await assert_identities(system)
    assert (ledger["accepted"], ledger["done"]) == (COUNT, COUNT)

    async def clean() -> bool:
        return not await keys_without_ttl(system)

    await until(clean, 5, "only permanent keys are left without a TTL")
