"""A user's program on the stock OpenAI SDK, any version: asks for one of everything.

    python sdk_program.py BASE_URL MODEL

prints one JSON object of what came back. Nothing here knows of Forebay.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai

MESSAGES: Any = [{"role": "user", "content": "Tell me about queues."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Weather.", "parameters": SCHEMA},
}
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "place", "schema": SCHEMA, "strict": True},
}


def whole(answer: Any) -> Any:
    """An answer without its id and time."""
    value = answer.model_dump()
    for name in ("id", "created"):
        value.pop(name, None)
    for choice in value.get("choices", []):
        for call in (choice.get("message") or {}).get("tool_calls") or []:
            call.pop("id", None)
    return value


def joined(chunks: Any) -> dict[str, Any]:
    """What a stream of chat chunks says."""
    text: dict[int, str] = {}
    usage, ends = None, {}
    for chunk in chunks:
        usage = chunk.usage.model_dump() if getattr(chunk, "usage", None) else usage
        for choice in chunk.choices:
            text[choice.index] = text.get(choice.index, "") + (choice.delta.content or "")
            ends[choice.index] = choice.finish_reason or ends.get(choice.index)
    return {"text": text, "ends": ends, "usage": usage}


def ask(url: str, model: str) -> dict[str, Any]:
    """With the blocking client."""
    base: Any = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 16}
    with openai.OpenAI(base_url=url, api_key="none") as client:
        chat: Any = client.chat.completions
        return {
            "models": [one.id for one in client.models.list()],
            "chat": whole(chat.create(**base)),
            "stream": joined(chat.create(**base, stream=True)),
            "usage": joined(
                chat.create(**base, stream=True, stream_options={"include_usage": True})
            ),
            "two": whole(chat.create(**base | {"n": 2, "temperature": 1, "seed": 3})),
            "tools": whole(
                chat.create(
                    **base | {"max_tokens": 64}, tools=[TOOL], parallel_tool_calls=False,
                    tool_choice={"type": "function", "function": {"name": "weather"}},
                )
            ),
            "format": whole(chat.create(**base | {"max_tokens": 64}, response_format=FORMAT)),
            "text": whole(
                client.completions.create(model=model, prompt="Once", max_tokens=9, temperature=0)
            ),
            "vllm": whole(
                chat.create(**base, extra_body={"ignore_eos": True, "return_token_ids": True})
            ),
        }  # fmt: skip


async def ask_async(url: str, model: str) -> dict[str, Any]:
    """With the asynchronous client: one whole, one streamed, at once."""
    base: Any = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 16}

    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:

        async def streamed() -> dict[str, Any]:
            stream: Any = await client.chat.completions.create(**base, stream=True)
            return joined([chunk async for chunk in stream])

        answer, stream = await asyncio.gather(client.chat.completions.create(**base), streamed())
    return {"async chat": whole(answer), "async stream": stream}


def main() -> None:
    url, model = sys.argv[1:3]
    said = ask(url, model) | asyncio.run(ask_async(url, model))
    json.dump({"version": openai.__version__, "said": said}, sys.stdout, sort_keys=True)


if __name__ == "__main__":
    main()
