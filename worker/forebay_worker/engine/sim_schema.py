"""A value that fits a JSON schema roughly, for tool calls and structured answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from forebay_worker.engine.sim_text import Source

_DEEPEST = 8


def example_json(schema: Any, source: Source) -> str:
    """JSON of an example for `schema`, its texts in the source's words; always an object."""
    words = _words(source)
    value = _Example(schema, words).value(schema, 0)
    return json.dumps(value if isinstance(value, dict) else {"value": value}, ensure_ascii=False)


def _words(source: Source) -> Iterator[str]:
    position = 0
    while True:
        word = source.token(position).text.strip()
        if word.isalpha():
            yield word
        position += 1


class _Example:
    def __init__(self, root: Any, words: Iterator[str]) -> None:
        self._root = root
        self._words = words

    def value(self, schema: Any, depth: int) -> Any:
        """An example; references are followed, recursion ends in null."""
        schema = self._resolve(schema)
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return None
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        for name in ("anyOf", "oneOf", "allOf"):
            if schema.get(name):
                return self.value(schema[name][0], depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object")
        if isinstance(kind, list):
            kind = kind[0]
        if kind == "object":
            properties = schema.get("properties") or {}
            return {name: self.value(sub, depth + 1) for name, sub in properties.items()}
        if kind == "array":
            count = max(1, schema.get("minItems", 1))
            return [self.value(schema.get("items", {"type": "string"}), depth + 1)] * count
        if kind == "string":
            return next(self._words)
        if kind in ("integer", "number"):
            return schema.get("minimum", 7)
        return True if kind == "boolean" else None

    def _resolve(self, schema: Any) -> Any:
        """Follow `#/…` references; a chain that is broken or endless gives None."""
        for _ in range(_DEEPEST):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            if not isinstance(reference, str):
                return schema
            schema = self._root
            for step in reference.removeprefix("#/").split("/"):
                schema = schema.get(step) if isinstance(schema, dict) else None
        return None
