"""Finding and changing single members of a JSON object's text without touching the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NamedTuple

_SPACE = re.compile(r"[ \t\n\r]*")
_VALUE = json.JSONDecoder(strict=False)


class Member(NamedTuple):
    """Places in the text: key and value, and the end past the comma that follows, if any."""

    key_at: int
    value_at: int
    value_end: int
    end: int
    value: object


def members(text: str, at: int = 0) -> Iterator[tuple[str, Member]]:
    """The members of the object that begins at `at`, in order. Raises ValueError."""
    at = _expect(text, at, "{")
    while text[at : at + 1] != "}":
        key_at = at
        key, at = scanstring(text, _expect(text, at, '"', skip=False), False)
        value_at = _expect(text, _skip(text, at), ":")
        value, value_end = _VALUE.raw_decode(text, value_at)
        at = _skip(text, value_end)
        comma = text[at : at + 1] == ","
        end = _skip(text, at + 1) if comma else value_end
        yield key, Member(key_at, value_at, value_end, end, value)
        if not comma:
            _expect(text, at, "}", skip=False)
            return
        at = end


def member(text: str, name: str, at: int = 0) -> Member | None:
    """The member `name` of the object at `at`: the last one, which is the one that counts."""
    found = None
    for key, one in members(text, at):
        if key == name:
            found = one
    return found


def without(text: str, one: Member) -> str:
    """The text without this member and its comma."""
    if one.end > one.value_end:
        return text[: one.key_at] + text[one.end :]
    # The last member: the comma before it goes too.
    head = text[: one.key_at].rstrip(" \t\n\r").removesuffix(",")
    return head + text[one.value_end :]


def with_first(text: str, addition: str, at: int = 0) -> str:
    """The text with `addition` as first member of the object that begins at `at`."""
    inside = _expect(text, at, "{")
    comma = "" if text[inside : inside + 1] == "}" else ","
    return text[:inside] + addition + comma + text[inside:]


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # the pattern matches the empty string
    return found.end()


def _expect(text: str, at: int, mark: str, skip: bool = True) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"{mark!r} expected at {at}")
    return _skip(text, at + 1) if skip else at + 1
