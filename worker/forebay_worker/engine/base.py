"""What a worker may ask of an engine, and every way an engine may say no.

Errors, and what the caller can do about each:

    EngineError
    ├── EngineUnreachable   nothing was accepted: give the request back, take less
    ├── EngineBusy          the engine's own admission refused: give it back, take less
    ├── EngineBroken        accepted, then lost: ask health whether the engine died
    └── EngineStatus        the engine answered with an error
        ├── EngineRejected  4xx: the request is at fault, pass the answer through
        └── EngineFailed    5xx, or an error event inside a stream: ask health, then retry
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One request as the engine shall get it; nothing in it is changed on the way."""

    request_id: str
    """Sent as X-Request-Id; vLLM answers with `chatcmpl-<id>` or `cmpl-<id>`."""
    path: str
    """Path on the engine, such as `/v1/chat/completions`."""
    body: bytes
    """JSON, ready to send."""
    stream: bool
    """Whether the body asks for `stream: true`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers to pass on: traceparent, tracestate, x-vllm-priority."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole answer of a call that does not stream; its status is always 2xx."""

    status: int
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """The data of one server-sent event, bytes as received; `[DONE]` is never a chunk."""

    data: bytes


EngineEvent = Answer | Chunk


@dataclass(frozen=True, slots=True)
class Load:
    """How full the engine is now."""

    running: int
    """Sequences in the batch."""
    waiting: int
    """Sequences that wait inside the engine."""
    kv_usage: float
    """Used part of the KV cache, 0 to 1."""
    preemptions: int
    """Preemptions since the engine started."""
    kv_tokens: int | None
    """Tokens that the KV cache holds; None where the engine does not say."""
    slots: int | None
    """The engine's own limit of running sequences; None where it does not say."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What an engine can do for one of its models beyond what every engine does."""

    token_ids: bool = False
    """States the token ids of its texts when asked (`return_token_ids`), takes ids as prompt."""
    continues_messages: bool = False
    """Goes on with a chat's last message when asked (`continue_final_message`)."""
    max_tokens: int | None = None
    """Most tokens of prompt and text together; None where it does not say."""


class Engine(Protocol):
    """A thing that answers OpenAI-shaped calls."""

    async def start(self) -> None:
        """Make ready to take calls; says nothing about the health of a remote engine."""

    def generate(self, call: EngineCall) -> AsyncGenerator[EngineEvent]:
        """Yield one Answer, or the Chunks of a stream in order.

        A normal end means that the engine said it was done. `aclose()`, or cancelling the
        task that iterates, closes the connection at once and so stops the engine's work.
        Raises an EngineError; chunks that came before stay valid.
        """

    async def load(self) -> Load:
        """How full the engine is. Raises an EngineError when it cannot be asked."""

    async def health(self) -> bool:
        """Whether the engine says within 2 s that it is well. Never raises an EngineError."""

    async def models(self) -> list[str]:
        """The ids of the served models. Raises an EngineError."""

    def traits(self, model: str) -> Traits:
        """What the engine can do for this model, as it said when it last listed its models."""

    async def text_of(self, model: str, token_ids: Sequence[int]) -> str | None:
        """The text of these tokens, None where the engine does not say. Raises an EngineError."""

    async def close(self) -> None:
        """Let go of everything; calls that still run end with EngineBroken."""


class EngineError(Exception):
    """The engine did not answer a call with success."""


class EngineUnreachable(EngineError):
    """No connection came about, so nothing was accepted: safe to give back."""


class EngineBusy(EngineError):
    """The engine's own admission said no (503): safe to give back, and take less."""


class EngineBroken(EngineError):
    """The connection or the body broke after the engine may have accepted the call."""


class EngineStatus(EngineError):
    """The engine answered, and its answer is an error."""

    def __init__(self, status: int, content_type: str, body: bytes) -> None:
        # The body may quote the prompt, so it stays out of the message and thus out of logs.
        super().__init__(f"engine answered {status}")
        self.status = status
        self.content_type = content_type
        self.body = body


class EngineRejected(EngineStatus):
    """4xx: the client's fault; the client gets this answer as it is."""


class EngineFailed(EngineStatus):
    """5xx other than 503, or an error event in a stream (status from the event's code)."""
