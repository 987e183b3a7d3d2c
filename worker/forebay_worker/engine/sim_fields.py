"""Checked reading of request fields, with refusals in vLLM's shape."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from forebay_worker.engine.base import EngineRejected

Body = dict[str, Any]


def error_body(status: int, kind: str, message: str, param: str | None = None) -> bytes:
    """An error as vLLM writes it."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":")).encode()


def refuse(
    message: str, param: str | None = None, status: int = 400, kind: str = "BadRequestError"
) -> NoReturn:
    """Raise EngineRejected, the answer to a request that is the client's fault."""
    raise EngineRejected(status, "application/json", error_body(status, kind, message, param))


def parse_body(body: bytes) -> Body:
    """The request's JSON object."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        refuse("the body is not valid JSON", "body", kind="Bad Request")
    if not isinstance(parsed, dict):
        refuse("the body must be a JSON object", "body", kind="Bad Request")
    return parsed


def integer(body: Body, name: str, default: int, low: int) -> int:
    """An integer field of at least `low`; null counts as absent."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(f"{name} must be an integer", name, kind="Bad Request")
    if value < low:
        refuse(f"{name} must be at least {low}, got {value}.", name)
    return value


def number(body: Body, name: str, low: float, high: float) -> None:
    """Refuse a number field outside [low, high]; the simulation does not use its value."""
    value = body.get(name)
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(f"{name} must be a number", name, kind="Bad Request")
    if not low <= value <= high:
        refuse(f"{name} must be in [{low}, {high}], got {value}.", name)


def flag(body: Body, name: str, default: bool = False) -> bool:
    """A boolean field."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        refuse(f"{name} must be true or false", name, kind="Bad Request")
    return value


def mapping(body: Body, name: str) -> Body:
    """An object field, empty when absent."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        refuse(f"{name} must be an object", name, kind="Bad Request")
    return value


def objects(body: Body, name: str) -> list[Body]:
    """A field that is a list of objects, empty when absent."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        refuse(f"{name} must be a list of objects", name, kind="Bad Request")
    return value


def texts(body: Body, name: str) -> list[str]:
    """A field that is a text or a list of texts, empty when absent."""
    value = body.get(name)
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        refuse(f"{name} must be a text or a list of texts", name, kind="Bad Request")
    return value


def prompts(body: Body, name: str) -> list[str | list[int]]:
    """A field that is a text, token ids, or a list of either; never empty."""
    value: Any = body.get(name)
    if isinstance(value, str) or _is_token_ids(value):
        return [value]
    if not isinstance(value, list) or not value:
        refuse(f"{name} must be provided and non-empty", name)
    if not all(isinstance(item, str) or _is_token_ids(item) for item in value):
        refuse(f"{name} must be texts or lists of token ids", name, kind="Bad Request")
    return value


def _is_token_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(item) is int and 0 <= item < 1 << 31 for item in value)
    )
