"""Going on where an earlier attempt was cut off: what is asked of the engine, and how its chunks
become those of the stream that the client has begun to read.

By token ids wherever each delivered text has its mark: `/v1/completions` with the prompt's ids and
the ids said so far, so that the engine continues from the very same tokens. Else by text, which an
engine may divide into other tokens than before: the client gets one clean text, but not always the
one that it would have got.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay_shared.records import Usage
from forebay_worker.delivered import Delivered
from forebay_worker.engine import Traits
from forebay_worker.marks import TokenIds
from forebay_worker.resumable import CHAT, COMPLETIONS, Body
from forebay_worker.rewriter import Rewriter, compact

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
_PLAIN = frozenset(
    {
        "model",
        "prompt",
        "max_tokens",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "best_of",
        "echo",
        "stop",
        "logit_bias",
        "logprobs",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "user",
        "metadata",
        "service_tier",
        "priority",
    }
)
"""What a completion may ask of an engine of unknown kind, which may keep anything for the rest."""


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
    if rest is None and (limit is not None or path == COMPLETIONS):
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
    if body.get("truncate_prompt_tokens") is not None:
        return False
    if path == COMPLETIONS:
        known = traits.continues_messages or (_PLAIN.issuperset(body) and "max_tokens" in body)
        return known and isinstance(body["prompt"], str)
    return traits.continues_messages and not body.get("continue_final_message")


def _limit(path: str, body: Body) -> int | None:
    """The limit that the engine has set or was told; None where there is none."""
    if path == COMPLETIONS:
        limit = body.get("max_tokens")
        return COMPLETION_TOKENS if limit is None else int(limit)
    named = [body[name] for name in _LIMITS if body.get(name) is not None]
    return int(named[0]) if named else None


def _rest(limit: int | None, room: int | None, said: int) -> int | None:
    """Tokens that may still come, None where that is unknown or nothing is left."""
    most = min((one for one in (limit, room) if one is not None), default=None)
    return None if most is None or most <= said else most - said


def _streamed(body: Body) -> bytes:
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    body |= {"stream": True, "stream_options": {**options, "include_usage": True}}
    return compact(body)
