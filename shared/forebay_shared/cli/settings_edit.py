"""Editing settings as people type them: strictly, since a mistyped name would change nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from forebay_shared.settings import ClassSettings, PoolSettings

ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Edit:
    """Changes as typed and as a file holds them; `pool` and `epoch`: where that file is from."""

    changes: Sequence[str]
    file: dict[str, Any]
    pool: str | None = None
    epoch: int | None = None

    def applied(self, settings: PoolSettings) -> PoolSettings:
        """The settings with these changes; the typed ones go last.

        Raises UsageError for an unknown name or a value that cannot be.
        """
        value = settings.model_dump(mode="json")
        for name, new in self.file.items():
            both_objects = isinstance(new, dict) and isinstance(value.get(name), dict)
            value[name] = value[name] | new if both_objects else new
        _require_strict(value)
        for change in self.changes:
            _apply(value, change)
        return _require_strict(value)


def read_file(path: Path) -> tuple[dict[str, Any], str | None, int | None]:
    """Settings, pool and epoch in a file of `settings show --json`; or settings alone.

    Raises UsageError where it holds neither.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise click.UsageError(f"{path} is not JSON.") from None
    if isinstance(value, dict) and isinstance(value.get("settings"), dict):
        pool, epoch = value.get("pool"), value.get("epoch")
        if not (isinstance(pool, str) and isinstance(epoch, int)):
            raise click.UsageError(f"{path} has settings without their pool and epoch.")
        return value["settings"], pool, epoch
    if not isinstance(value, dict):
        raise click.UsageError(f"{path} holds no JSON object.")
    return value, None, None


def flat(settings: PoolSettings) -> dict[str, Any]:
    """Name → value, with the dotted names that `settings set` takes."""
    rows: dict[str, Any] = {}
    for name, value in settings.model_dump(mode="json").items():
        if name == "classes":
            for one in value:
                rows |= {f"classes.{one['name']}.{k}": v for k, v in one.items() if k != "name"}
        elif isinstance(value, dict):
            rows |= {f"{name}.{inner}": one for inner, one in value.items()}
        else:
            rows[name] = value
    return rows


def typed(value: object) -> str:
    """A value as people type it for `settings set`."""
    return value if isinstance(value, str) else json.dumps(value)


def differences(old: PoolSettings, new: PoolSettings) -> dict[str, tuple[Any, Any]]:
    """Name → (old, new) of what differs; `classes` where classes or their order do."""
    found: dict[str, tuple[Any, Any]] = {}
    if old.class_names() != new.class_names():
        found["classes"] = (", ".join(old.class_names()), ", ".join(new.class_names()))
    before, after = flat(old), flat(new)
    for name in dict.fromkeys([*before, *after]):
        pair = (before.get(name, ABSENT), after.get(name, ABSENT))
        if pair[0] != pair[1]:
            found[name] = pair
    return found


def _apply(value: dict[str, Any], change: str) -> None:
    name, equals, text = change.partition("=")
    if not equals:
        raise click.UsageError(f"{change!r} is not NAME=VALUE.")
    holder, field = _holder(value, name)
    try:
        holder[field] = json.loads(text)
    except ValueError:
        holder[field] = text


def _holder(value: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """The object that has the setting of a dotted name, and the setting's name in it."""
    match name.split("."):
        case ["classes", class_name, field] if field in _class_fields():
            for one in value["classes"]:
                if one["name"] == class_name:
                    return one, field
            known = ", ".join(one["name"] for one in value["classes"])
            raise click.UsageError(f"There is no class {class_name!r}; there are: {known}.")
        case ["cost", field] if field in value["cost"]:
            return value["cost"], field
        case [field] if field in value and field not in ("classes", "cost"):
            return value, field
    raise _unknown(name)


def _unknown(name: str) -> click.UsageError:
    names = [one for one in flat(PoolSettings()) if not one.startswith("classes.")]
    names += [f"classes.<name>.{field}" for field in _class_fields()]
    return click.UsageError(f"There is no setting {name!r}; there are: {', '.join(names)}.")


def _class_fields() -> list[str]:
    return [field for field in ClassSettings.model_fields if field != "name"]


def _require_strict(value: dict[str, Any]) -> PoolSettings:
    """As stored settings are read, but refusing what that would ignore or bend."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        raise click.UsageError("Numbers must be finite.") from None
    try:
        return PoolSettings.model_validate_json(text, strict=True, extra="forbid")
    except ValidationError as error:
        raise _told(error.errors(include_url=False), value) from None


def _told(errors: list[ErrorDetails], value: dict[str, Any]) -> click.UsageError:
    for error in errors:
        if error["type"] == "extra_forbidden":
            return _unknown(_name(error, value))
    sentences = []
    for error in errors:
        where = f"{_name(error, value)}: " if error["loc"] else ""
        sentences.append(where + error["msg"].removeprefix("Value error, "))
    return click.UsageError("; ".join(sentences) + ".")


def _name(error: ErrorDetails, value: dict[str, Any]) -> str:
    """The place of an error as a dotted name, with the class's name for its number."""
    parts = [str(part) for part in error["loc"]]
    match error["loc"]:
        case ["classes", int(number), *_]:
            one = value["classes"][number]
            parts[1] = str(one.get("name", number)) if isinstance(one, dict) else str(number)
    return ".".join(parts)
