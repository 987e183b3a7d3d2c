"""What the simulated engine says to a body: the truth that every text is held against."""

from __future__ import annotations

import json
from typing import Any

from forebay_worker.engine.base import EngineCall
from forebay_worker.engine.sim_fields import parse_body
from forebay_worker.engine.sim_request import Setting, read_chat, read_completion

SETTING = Setting(models=("sim",), seed=0, max_model_len=16_384)


def expected_text(path: str, body: dict[str, Any]) -> str:
    """The text of the first choice, by the engine's own rules."""
    call = EngineCall("", path, json.dumps(body).encode(), stream=bool(body["stream"]))
    read = read_chat if path == "/v1/chat/completions" else read_completion
    writer = read(call, parse_body(call.body), SETTING).writers[0]
    parts: list[str] = []
    while not writer.done:
        parts.append(writer.next().text)
    return "".join(parts)
