"""Going on where an earlier attempt was cut off: what is asked of the engine, and how its chunks
become those of the stream that the client has begun to read.

By token ids wherever each delivered text has its mark: `/v1/completions` with the prompt's ids and
the ids said so far, so that the engine continues from the very same tokens. Else by text, which an
engine may divide into other tokens than before: the client gets one clean text, but not always the
one that it would have got.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from forebay_shared.records import Usage
from forebay_worker.delivered import Delivered
from forebay_worker.engine import Traits
from forebay_worker.marks import TokenIds
from forebay_worker.resumable import CHAT, COMPLETIONS, Body

COMPLETION_TOKENS = 16
"""What `/v1/completions` produces at most where max_tokens is absent, by OpenAI's definition."""
_LIMITS = ("max_completion_tokens", "max_tokens")
_OF_CHAT = frozenset(
    {
        *_LIMITS,
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "response_format",
        "logprobs",
        "top_logprobs",
        "modalities",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "documents",
        "truncate_prompt_tokens",
    }
)
"""What shapes a chat's prompt or answer, and would shape it a second time."""
_SHARED = ("id", "object", "created", "model")


@dataclass(frozen=True, slots=True)
class Continuation:
    """The engine call that goes on: `before` is what was used before it."""

    path: str
    body: bytes
    ids: TokenIds
    before: Usage
    rewriter: Rewriter


def continuation(
    path: str, body: Body, delivered: Delivered, traits: Traits
) -> Continuation | None:
    """How to go on after what was delivered, or None where that cannot be exact."""
    if delivered.spoiled:
        return None
    asked_ids = bool(body.get("return_token_ids"))
    if delivered.marked and delivered.prompt and traits.token_ids:
        if asked_ids and not delivered.ends_marked:
            return None  # a client that reads ids has got some that would come again
        return _by_ids(path, body, delivered, traits)
    return None if asked_ids else _by_text(path, body, delivered, traits)


def may_continue(path: str, body: Body, traits: Traits) -> bool:
    """Whether what this engine emits for the request could be continued later."""
    return traits.token_ids or (
        not body.get("return_token_ids") and _has_text_way(path, body, traits)
    )


def _by_ids(path: str, body: Body, seen: Delivered, traits: Traits) -> Continuation | None:
    room = None if traits.max_tokens is None else traits.max_tokens - len(seen.prompt)
    rest = _rest(_limit(path, body), room, len(seen.ids))
    if rest is None:
        return None
    kept = {name: value for name, value in body.items() if name not in _OF_CHAT}
    kept |= {"prompt": seen.prompt + seen.ids, "max_tokens": rest, "return_token_ids": True}
    kinds = TokenIds.ASKED if body.get("return_token_ids") else TokenIds.ADDED
    before = Usage(prompt=len(seen.prompt), output=len(seen.ids))
    return Continuation(
        COMPLETIONS, _streamed(kept), kinds, before, Rewriter(seen.template, before)
    )


def _by_text(path: str, body: Body, seen: Delivered, traits: Traits) -> Continuation | None:
    if not _has_text_way(path, body, traits):
        return None
    # A chunk is a token nearly always; what is left of the limit is exact only by ids.
    limit = _limit(path, body)
    rest = _rest(limit, None, seen.pieces)
    if limit is not None and rest is None:
        return None
    kept = {name: value for name, value in body.items() if name not in _LIMITS}
    if rest is not None:
        kept["max_tokens"] = rest
    if path == CHAT:
        said = {"role": "assistant", "content": seen.text}
        kept |= {"messages": [*body["messages"], said], "continue_final_message": True}
        kept["add_generation_prompt"] = False
    else:
        kept["prompt"] = body["prompt"] + seen.text
    before = Usage(output=seen.pieces)
    rewriter = Rewriter(seen.template, before, stated_prompt=True)
    return Continuation(path, _streamed(kept), TokenIds.NONE, before, rewriter)


def _has_text_way(path: str, body: Body, traits: Traits) -> bool:
    if path == COMPLETIONS:
        return isinstance(body["prompt"], str)
    return traits.continues_messages and not body.get("continue_final_message")


def _limit(path: str, body: Body) -> int | None:
    named = [body[name] for name in _LIMITS if type(body.get(name)) is int]
    if named:
        return int(named[0])
    return COMPLETION_TOKENS if path == COMPLETIONS else None


def _rest(limit: int | None, room: int | None, said: int) -> int | None:
    """Tokens that may still come, None where that is unknown or nothing is left."""
    most = min((one for one in (limit, room) if one is not None), default=None)
    return None if most is None or most <= said else most - said


def _streamed(body: Body) -> bytes:
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    body |= {"stream": True, "stream_options": {**options, "include_usage": True}}
    return compact(body)


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
