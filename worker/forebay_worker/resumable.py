"""Which streams can be continued exactly by another engine call, and which cannot.

A continuation gives the engine the prompt and the output so far, and asks for the rest. That is
the same text only where the rest depends on nothing but those tokens. What else an engine keeps
of a running request is lost with it; each field that makes it keep something is listed here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from forebay_shared.records import Envelope

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GENERATING = frozenset({CHAT, COMPLETIONS})

Body = dict[str, Any]
_Test = Callable[[Any], bool]


def _present(value: Any) -> bool:
    return value is not None


def _wanted(value: Any) -> bool:
    return value is not None and value is not False


def _several(value: Any) -> bool:
    return value not in (None, 1)


def _penalty(value: Any) -> bool:
    return value not in (None, 0)


def _formatted(value: Any) -> bool:
    return value is not None and value != {"type": "text"}


def _not_text(value: Any) -> bool:
    return value not in (None, ["text"])


def _refused(value: Any) -> bool:
    return value is False


def _no_number(value: Any) -> bool:
    return value is not None and type(value) is not int


_SPOILS: Mapping[str, _Test] = {
    # Several texts at a time, or a search among them.
    "n": _several,
    "best_of": _several,
    "use_beam_search": bool,
    # A parser reads the text from its beginning.
    "tools": bool,
    "functions": bool,
    # A grammar's automaton would begin anew, and nest a second document into the first.
    "response_format": _formatted,
    "structured_outputs": _present,
    # The prompt, or numbers about each token, come back with the text.
    "logprobs": _wanted,
    "prompt_logprobs": _present,
    "echo": bool,
    # Counted over the output alone, part of which would have become prompt.
    "min_tokens": bool,
    "presence_penalty": _penalty,
    "frequency_penalty": _penalty,
    "repetition_penalty": _several,
    "bad_words": bool,
    "repetition_detection": _present,
    "thinking_token_budget": _present,
    # The engine holds text back that may be the begin of a stop text.
    "stop": bool,
    # Not text alone goes in, or comes out.
    "suffix": bool,
    "prompt_embeds": _present,
    "audio": _present,
    "modalities": _not_text,
    # The prompt's tokens are on another engine.
    "kv_transfer_params": _present,
    "ec_transfer_params": _present,
    # Thoughts that a parser takes out, ids and all; whatever a plugin of the engine counts.
    "include_reasoning": _refused,
    "vllm_xargs": bool,
    # Not a number that could be lessened by what was said.
    "max_tokens": _no_number,
    "max_completion_tokens": _no_number,
}
_GUIDED = "guided_"


def resumable(envelope: Envelope) -> Body | None:
    """The parsed body of a request whose output can be continued exactly, else None."""
    if envelope.path not in GENERATING:
        return None
    try:
        body = json.loads(envelope.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or _spoiled(body):
        return None
    sound = _is_text_chat if envelope.path == CHAT else _is_one_prompt
    return body if sound(body) else None


def _spoiled(body: Body) -> bool:
    if any(spoils(body[name]) for name, spoils in _SPOILS.items() if name in body):
        return True
    if any(name.startswith(_GUIDED) and value for name, value in body.items()):
        return True
    # A seed draws a fixed row of numbers, and a continuation would begin with the first again.
    return body.get("seed") is not None and body.get("temperature") != 0


def _is_text_chat(body: Body) -> bool:
    messages = body.get("messages")
    return isinstance(messages, list) and all(map(_is_text, messages))


def _is_text(message: Any) -> bool:
    if not isinstance(message, dict):
        return False
    content = message.get("content")
    if not isinstance(content, list):
        return content is None or isinstance(content, str)
    return all(isinstance(part, dict) and part.get("type") == "text" for part in content)


def _is_one_prompt(body: Body) -> bool:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return True
    return isinstance(prompt, list) and bool(prompt) and all(type(one) is int for one in prompt)
