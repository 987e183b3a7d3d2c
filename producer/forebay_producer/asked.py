"""What Forebay needs to know of a body. Everything else in it passes to the engine as received."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forebay_shared.calls.requests import UNKNOWN
from forebay_shared.errors import InvalidRequest

_MOST = 2**31 - 1
_Tokens = Annotated[int, Field(ge=0, le=_MOST)]
_Choices = Annotated[int, Field(ge=1, le=10_000)]
COMPLETION_TOKENS = 16
"""What `/v1/completions` produces at most where max_tokens is absent, by OpenAI's definition."""

GENERATING = frozenset({"/v1/chat/completions", "/v1/completions"})


class Asked(BaseModel):
    """The fields that Forebay reads, of any endpoint."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(min_length=1, max_length=512)
    stream: bool | None = None
    service_tier: str | None = None
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    n: _Choices | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    def answers(self) -> int:
        """How many texts the engine will produce."""
        return self.n or 1

    def tokens_limit(self) -> int | None:
        """Most tokens of one text, or None where the body names none."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens


class AskedCompletion(Asked):
    """The fields of `/v1/completions`: several prompts may stand in one body."""

    prompt: Any = None
    best_of: _Choices | None = None

    def answers(self) -> int:
        prompts = 1
        if isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int):
            prompts = len(self.prompt)
        return prompts * max(self.n or 1, self.best_of or 1)

    def tokens_limit(self) -> int | None:
        named = "max_tokens" in self.model_fields_set
        return self.max_tokens if named else COMPLETION_TOKENS


def read_asked(path: str, body: bytes) -> Asked:
    """Read the body of a call to `path`. Raises InvalidRequest that names the field."""
    kind = AskedCompletion if path == "/v1/completions" else Asked
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(error) from None


def output_limit(path: str, asked: Asked) -> int:
    """Most output tokens of a request, UNKNOWN where it names none, 0 where it has no output."""
    if path not in GENERATING:
        return 0
    tokens = asked.tokens_limit()
    return UNKNOWN if tokens is None else min(tokens * asked.answers(), _MOST)


def _invalid(error: ValidationError) -> InvalidRequest:
    # Neither the input nor its neighbourhood: it may be the prompt.
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    if first["type"] == "json_invalid":
        return InvalidRequest(
            f"The body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}."
        )
    if param is None:
        return InvalidRequest("The body must be a JSON object.")
    return InvalidRequest(f"{param}: {first['msg']}.", param=param)
