"""Making the chunks of a continuation those of the stream that its client has begun to read."""

from __future__ import annotations

import json
from typing import Any

from forebay_shared.records import Usage
from forebay_worker.resumable import Body

_SHARED = ("id", "object", "created", "model")


def compact(value: Any) -> bytes:
    """JSON without blanks, texts as UTF-8, as engines write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Rewriter:
    """Makes a continuation's chunks those of the stream that has begun.

    `template` is a chunk of that stream: its id and time are kept, and a chat stays a chat.
    `before`: tokens that came before; `stated_prompt`: the prompt is what the engine states less
    those, else that of `before`.
    """

    __slots__ = ("_before", "_chat", "_shared", "_stated_prompt", "_token_ids")

    def __init__(self, template: Body, before: Usage, *, stated_prompt: bool = False) -> None:
        (choice,) = template["choices"]
        self._chat = "delta" in choice
        self._token_ids = "token_ids" in choice
        self._shared = {name: template[name] for name in _SHARED if name in template}
        self._before = before
        self._stated_prompt = stated_prompt

    def rewrite(self, data: bytes) -> bytes | None:
        """The chunk as the client shall get it; None for one that it had already."""
        try:
            chunk = json.loads(data)
            choices = [self._choice(one) for one in chunk["choices"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return data  # not a chunk as we know them: judged by whoever reads it
        if None in choices:
            return None
        if isinstance(chunk.get("usage"), dict):
            chunk["usage"] = self.mend(chunk["usage"])
        kept = {
            n: value for n, value in chunk.items() if n not in ("prompt_token_ids", "prompt_text")
        }
        return compact({**kept, **self._shared, "choices": choices})

    def _choice(self, choice: Body) -> Body | None:
        if "delta" in choice:
            delta = dict(choice["delta"])
            if delta.pop("role", None) and not any(delta.values()) and not choice["finish_reason"]:
                return None
            return {**choice, "delta": delta}
        if not self._chat:
            return choice | ({"prompt_token_ids": None} if "prompt_token_ids" in choice else {})
        return self._chat_choice(choice)

    def _chat_choice(self, choice: Body) -> Body:
        finish = choice.get("finish_reason")
        made = {
            "index": choice.get("index", 0),
            "delta": {"content": choice["text"]},
            "logprobs": None,
            "finish_reason": finish,
        }
        if finish is not None:
            made["stop_reason"] = choice.get("stop_reason")
        if self._token_ids or choice.get("token_ids"):
            made["token_ids"] = choice.get("token_ids")
        return made

    def mend(self, usage: Body) -> Body:
        """The usage of the whole request, from that of its continuation."""
        output = self._before.output + _count(usage.get("completion_tokens"))
        prompt = self._before.prompt
        if self._stated_prompt:
            prompt = max(0, _count(usage.get("prompt_tokens")) - self._before.output)
        mended = {**usage, "prompt_tokens": prompt, "completion_tokens": output}
        mended["total_tokens"] = prompt + output
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and "cached_tokens" in details:
            cached = min(prompt, _count(details["cached_tokens"]))
            mended["prompt_tokens_details"] = {**details, "cached_tokens": cached}
        return mended

    def usage_chunk(self) -> bytes:
        """The chunk that states the usage of a text that had ended already."""
        usage = self.mend({"prompt_tokens": 0, "completion_tokens": 0})
        return compact({**self._shared, "choices": [], "usage": usage})


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
