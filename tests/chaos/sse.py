"""Server-sent events of an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp


@dataclass(frozen=True, slots=True)
class Message:
    """One event; `id` is empty where the stream has none."""

    data: str
    event: str = ""
    id: str = ""


async def messages(answer: aiohttp.ClientResponse) -> AsyncIterator[Message]:
    """The events until the stream closes. Raises aiohttp.ClientError where it breaks."""
    fields: dict[str, str] = {}
    async for raw in answer.content:
        line = raw.decode().rstrip("\r\n")
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "data" in fields:
            yield Message(fields["data"], fields.get("event", ""), fields.get("id", ""))
            fields = {}
