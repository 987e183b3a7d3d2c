"""The function library: Lua files in flow order, joined, named by a hash of their text.

Old and new processes each call their own library during a rolling deploy, because the library's
name and its functions' names end in the hash.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_PLACE = "@HASH@"


@cache
def _text() -> str:
    return "\n".join(path.read_text() for path in sorted(_FOLDER.glob("*.lua")))


@cache
def _hash() -> str:
    return hashlib.sha256(_text().encode()).hexdigest()[:12]


LIBRARY_NAME = f"forebay_{_hash()}"


@cache
def source() -> str:
    """The text for FUNCTION LOAD."""
    return f"#!lua name={LIBRARY_NAME}\n" + _text().replace(_PLACE, _hash())


@cache
def function_name(step: str) -> str:
    """The registered name of a step, such as `forebay_take_0123456789ab`."""
    return f"forebay_{step}_{_hash()}"
