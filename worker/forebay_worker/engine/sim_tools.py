"""Answers that must be JSON: forced tool calls and structured output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay_worker.engine import sim_fields as fields
from forebay_worker.engine.sim_fields import Body, refuse


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The function that is called instead of speaking."""

    name: str
    finish: str
    """`tool_calls`, or `stop` where the client named the function, as vLLM has it."""


def forced_call(body: Body) -> tuple[ToolCall | None, Any]:
    """The tool that must be called and the schema of its arguments."""
    choice = body.get("tool_choice")
    functions = {
        tool["function"].get("name"): tool["function"]
        for tool in fields.objects(body, "tools")
        if isinstance(tool.get("function"), dict)
    }
    if choice in (None, "none", "auto"):
        return None, None
    if not functions:
        refuse("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if choice == "required":
        name, finish = next(iter(functions)), "tool_calls"
    else:
        name, finish = _named_function(choice), "stop"
    if name not in functions:
        refuse("The tool specified in `tool_choice` is not among `tools`.", "tool_choice")
    return ToolCall(str(name), finish), functions[name].get("parameters") or {}


def _named_function(choice: Any) -> Any:
    function = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(function, dict):
        refuse("`tool_choice` must be none, auto, required or name a function.", "tool_choice")
    return function.get("name")


def answer_schema(body: Body) -> Any:
    """The schema of a structured answer, None for free text."""
    form = fields.mapping(body, "response_format")
    kind = form.get("type", "text")
    if kind == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}}}
    if kind == "json_schema":
        return fields.mapping(fields.mapping(form, "json_schema"), "schema")
    if kind != "text":
        refuse("response_format.type must be text, json_object or json_schema", "response_format")
    return None
