"""What a simulated engine reads out of a call for text."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from zlib import crc32

from forebay_worker.engine import sim_fields as fields
from forebay_worker.engine.base import EngineCall
from forebay_worker.engine.sim_fields import Body, refuse
from forebay_worker.engine.sim_schema import example_json
from forebay_worker.engine.sim_text import Monologue, Recital, Source, encode, encode_chat
from forebay_worker.engine.sim_tools import ToolCall, answer_schema, forced_call
from forebay_worker.engine.sim_writer import Limits, Writer

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
FAULTS = frozenset({"500", "503", "abort", "error_event", "broken", "crash"})
# As vLLM: a completion that sets no limit gets so many tokens.
COMPLETION_MAX_TOKENS = 16
_IMAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure that the request's `sim` field orders, once so many tokens were said."""

    kind: str
    after_tokens: int


@dataclass(frozen=True, slots=True)
class Setting:
    """What a request is read against."""

    models: tuple[str, ...]
    seed: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Common:
    """What every endpoint's request has."""

    id: str
    model: str
    priority: int
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class Form:
    """How the answer shall come."""

    stream: bool
    include_usage: bool
    return_token_ids: bool


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A chat or a completion; choice i belongs to prompt i // n."""

    common: Common
    chat: bool
    prompts: list[list[int]]
    writers: list[Writer]
    form: Form
    tool: ToolCall | None

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    def prompt_of(self, choice: int) -> list[int]:
        """The prompt that this choice answers."""
        return self.prompts[choice * len(self.prompts) // len(self.writers)]


def read_common(call: EngineCall, body: Body, setting: Setting, prefix: str) -> Common:
    """The fields all endpoints share. Raises EngineRejected."""
    model = body.get("model") or setting.models[0]
    if model not in setting.models:
        refuse(f"The model `{model}` does not exist.", "model", 404, "NotFoundError")
    priority = fields.integer(body, "priority", 0, -(1 << 31))
    for name, value in call.headers.items():
        if name.lower() == "x-vllm-priority":
            priority = _header_priority(value)
    request_id = body.get("request_id") or call.request_id
    return Common(f"{prefix}-{request_id}", str(model), priority, _fault(body))


def _header_priority(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        refuse("the header X-Vllm-Priority must be an integer", "priority")


def read_chat(call: EngineCall, body: Body, setting: Setting) -> TextRequest:
    """A /v1/chat/completions request. Raises EngineRejected."""
    common = read_common(call, body, setting, "chatcmpl")
    prompt = _chat_prompt(body)
    tool, schema = forced_call(body)
    if tool is None:
        schema = answer_schema(body)
    speech: Source | None = None
    if schema is not None:
        speech = Recital(example_json(schema, Monologue(setting.seed, common.model, prompt)))
    # Without a limit a chat has all the room there is.
    most = fields.integer(body, "max_tokens", setting.max_model_len, 1)
    most = fields.integer(body, "max_completion_tokens", most, 1)
    writers = _writers(body, setting, common.model, [prompt], most, speech)
    return TextRequest(common, True, [prompt], writers, _form(body), tool)


def read_completion(call: EngineCall, body: Body, setting: Setting) -> TextRequest:
    """A /v1/completions request. Raises EngineRejected."""
    common = read_common(call, body, setting, "cmpl")
    prompts = [encode(p) if isinstance(p, str) else p for p in fields.prompts(body, "prompt")]
    most = fields.integer(body, "max_tokens", COMPLETION_MAX_TOKENS, 1)
    writers = _writers(body, setting, common.model, prompts, most, None)
    return TextRequest(common, False, prompts, writers, _form(body), None)


def check_length(prompt: list[int], max_model_len: int) -> None:
    """Refuse a prompt that leaves no room for an answer."""
    if len(prompt) >= max_model_len:
        refuse(
            f"This model's maximum context length is {max_model_len} tokens. However, your "
            f"request has {len(prompt)} input tokens. Please reduce the length of the input.",
            "input_tokens",
        )


def _writers(
    body: Body,
    setting: Setting,
    model: str,
    prompts: list[list[int]],
    most: int,
    speech: Source | None,
) -> list[Writer]:
    n = fields.integer(body, "n", 1, 1)
    fields.number(body, "temperature", 0, math.inf)
    fields.number(body, "top_p", 0, 1)
    limits = _limits(body, most, setting.max_model_len)
    writers: list[Writer] = []
    for prompt in prompts:
        check_length(prompt, setting.max_model_len)
        room = replace(limits, max_tokens=min(most, setting.max_model_len - len(prompt)))
        for choice in range(n):
            source = speech or Monologue(setting.seed, model, prompt, choice)
            writers.append(Writer(source, room, len(writers)))
    return writers


def _limits(body: Body, most: int, max_model_len: int) -> Limits:
    if most > max_model_len:
        refuse(
            f"max_tokens={most} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            "max_tokens",
        )
    least = fields.integer(body, "min_tokens", 0, 0)
    if least > most:
        refuse(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")
    stop = tuple(fields.texts(body, "stop"))
    if "" in stop:
        refuse("stop cannot contain an empty string.")
    return Limits(
        max_tokens=most,
        min_tokens=least,
        ignore_eos=fields.flag(body, "ignore_eos"),
        stop=stop,
        include_stop=fields.flag(body, "include_stop_str_in_output"),
    )


def _form(body: Body) -> Form:
    stream = fields.flag(body, "stream")
    options = fields.mapping(body, "stream_options")
    if options and not stream:
        refuse("Stream options can only be defined when `stream=True`.", "stream_options")
    return Form(
        stream=stream,
        include_usage=fields.flag(options, "include_usage"),
        return_token_ids=fields.flag(body, "return_token_ids"),
    )


def _fault(body: Body) -> Fault | None:
    order = fields.mapping(body, "sim")
    if not order:
        return None
    kind = order.get("fail")
    if kind not in FAULTS:
        refuse(f"sim.fail must be one of {', '.join(sorted(FAULTS))}", "sim")
    # An error event needs a stream that has begun.
    least = 1 if kind == "error_event" else 0
    return Fault(kind, max(least, fields.integer(order, "after_tokens", 0, 0)))


def _chat_prompt(body: Body) -> list[int]:
    if body.get("messages") is None:
        refuse("messages: field required", "body.messages", kind="Bad Request")
    messages = fields.objects(body, "messages")
    if not messages:
        refuse("Provide at least one message; the conversation is empty.")
    open_end = fields.flag(body, "continue_final_message")
    if open_end and fields.flag(body, "add_generation_prompt", True):
        refuse("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    turns = [_turn(message) for message in messages]
    if open_end and turns[-1][0] != "assistant":
        refuse("continue_final_message needs a last message of the assistant.", "messages")
    return encode_chat(turns, open_end)


def _turn(message: Body) -> tuple[str, str]:
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        refuse("the role of a message is missing or unknown", "body.messages", kind="Bad Request")
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        content = "".join(_part(part) for part in content)
    elif content is not None and not isinstance(content, str):
        refuse("content must be a text or a list of parts", "body.messages", kind="Bad Request")
    calls = message.get("tool_calls")
    return role, (content or "") + (json.dumps(calls) if calls else "")


def _part(part: Body) -> str:
    """A part's text; an image or sound counts as a fixed number of words of its own."""
    if isinstance(part.get("text"), str):
        return str(part["text"])
    return f" {crc32(json.dumps(part).encode()):x}"[:8] * _IMAGE_TOKENS
