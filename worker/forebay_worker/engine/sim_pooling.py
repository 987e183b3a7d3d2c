"""Embeddings, scores and rankings of a simulated engine."""

from __future__ import annotations

import math
import struct
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from forebay_worker.engine import sim_fields as fields
from forebay_worker.engine.base import EngineCall
from forebay_worker.engine.sim_answer import compact_json, usage
from forebay_worker.engine.sim_fields import Body, refuse
from forebay_worker.engine.sim_request import Common, Setting, check_length, read_common
from forebay_worker.engine.sim_text import encode

DIMENSIONS = 64
_MOST_DIMENSIONS = 4_096
# vLLM takes the two sides of a score under any of these names.
_SIDES = (
    ("text_1", "text_2"),
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
)


@dataclass(frozen=True, slots=True)
class PoolingRequest:
    """A request whose answer depends on its prompts alone, each a sequence of its own."""

    common: Common
    prompts: list[list[int]]
    fields: dict[str, Any]

    def answer(self) -> bytes:
        """The whole answer."""
        tokens = sum(len(prompt) for prompt in self.prompts)
        head = {"id": self.common.id, "object": "list", "created": int(time.time())}
        total = {"model": self.common.model, "usage": usage(tokens, 0)}
        return compact_json({**head, **self.fields, **total})


def read_embedding(call: EngineCall, body: Body, setting: Setting) -> PoolingRequest:
    """A /v1/embeddings request. Raises EngineRejected."""
    common = read_common(call, body, setting, "embd")
    given = fields.prompts(body, "input")
    dimensions = fields.integer(body, "dimensions", DIMENSIONS, 1)
    if dimensions > _MOST_DIMENSIONS:
        refuse(f"dimensions must be at most {_MOST_DIMENSIONS}, got {dimensions}.", "dimensions")
    coding = body.get("encoding_format") or "float"
    if coding not in ("float", "base64"):
        refuse("encoding_format must be float or base64", "encoding_format")
    write = _base64 if coding == "base64" else list
    prompts = [encode(p) if isinstance(p, str) else p for p in given]
    data = [
        {
            "index": i,
            "object": "embedding",
            "embedding": write(_vector(setting.seed, common.model, prompt, dimensions)),
        }
        for i, prompt in enumerate(_checked(prompts, setting))
    ]
    return PoolingRequest(common, prompts, {"data": data})


def read_score(call: EngineCall, body: Body, setting: Setting) -> PoolingRequest:
    """A /v1/score request: one text against each, or pairs. Raises EngineRejected."""
    common = read_common(call, body, setting, "score")
    left, right = _two_sides(body)
    if len(left) == 1:
        left *= len(right)
    if len(left) != len(right):
        refuse("Input lengths must be either 1:1, 1:N or N:N")
    score = _scorer(setting, common.model)
    data = [
        {"index": i, "object": "score", "score": score(a, b)}
        for i, (a, b) in enumerate(zip(left, right, strict=True))
    ]
    prompts = [encode(a) + encode(b) for a, b in zip(left, right, strict=True)]
    return PoolingRequest(common, _checked(prompts, setting), {"data": data})


def read_rerank(call: EngineCall, body: Body, setting: Setting) -> PoolingRequest:
    """A /v1/rerank request, best first. Raises EngineRejected."""
    common = read_common(call, body, setting, "rerank")
    query, documents = fields.texts(body, "query"), fields.texts(body, "documents")
    if len(query) != 1 or not documents:
        refuse("rerank needs one query and at least one document")
    score = _scorer(setting, common.model)
    results = [
        {"index": i, "document": {"text": text}, "relevance_score": score(query[0], text)}
        for i, text in enumerate(documents)
    ]
    results.sort(key=lambda result: -float(str(result["relevance_score"])))
    top_n = fields.integer(body, "top_n", 0, 0) or len(results)
    prompts = [encode(query[0]) + encode(text) for text in documents]
    return PoolingRequest(common, _checked(prompts, setting), {"results": results[:top_n]})


def _two_sides(body: Body) -> tuple[list[str], list[str]]:
    for left, right in _SIDES:
        if body.get(left) is not None and body.get(right) is not None:
            sides = fields.texts(body, left), fields.texts(body, right)
            if all(sides):
                return sides
            refuse(f"{left} and {right} must not be empty")
    refuse("score needs text_1 and text_2, or queries and documents")


def _checked(prompts: list[list[int]], setting: Setting) -> list[list[int]]:
    for prompt in prompts:
        check_length(prompt, setting.max_model_len)
    return prompts


def _vector(seed: int, model: str, prompt: list[int], dimensions: int) -> list[float]:
    """A unit vector that depends on these alone."""
    key = f"{seed}/{model}/".encode() + struct.pack(f"{len(prompt)}q", *prompt)
    blocks = -(-dimensions // 64)
    noise = b"".join(blake2b(key, salt=struct.pack("q", i)).digest() for i in range(blocks))
    raw = [byte - 127.5 for byte in noise[:dimensions]]
    norm = math.hypot(*raw)
    return [x / norm for x in raw]


def _base64(vector: list[float]) -> str:
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _scorer(setting: Setting, model: str) -> Callable[[str, str], float]:
    """Half of 1 + cosine: 1 for equal texts, about a half for any others."""

    def score(a: str, b: str) -> float:
        left = _vector(setting.seed, model, encode(a), DIMENSIONS)
        right = _vector(setting.seed, model, encode(b), DIMENSIONS)
        return (1 + sum(x * y for x, y in zip(left, right, strict=True))) / 2

    return score
