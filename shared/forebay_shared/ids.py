"""Request ids: `<pool>.<ulid>`, of a requeue `<pool>.<ulid>.<n>`.

A ULID is 26 characters of Crockford's base 32: 48 bits of milliseconds since 1970, then 80 random
bits. Its time tells a result that has expired (410) from an id that never was (404).
"""

from __future__ import annotations

import re
import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ID = re.compile(r"([a-z0-9-]{1,32})\.([0-7][0-9A-HJKMNP-TV-Z]{25})(?:\.([1-9][0-9]{0,3}))?")


def _base32(number: int, length: int) -> str:
    digits = [_ALPHABET[(number >> shift) & 31] for shift in range(0, 5 * length, 5)]
    return "".join(reversed(digits))


def new_ulid(now_ms: int | None = None) -> str:
    """A new ULID for `now_ms` (default: this host's wall clock)."""
    stamp_ms = int(time.time() * 1000) if now_ms is None else now_ms
    return _base32(stamp_ms, 10) + _base32(secrets.randbits(80), 16)


def new_request_id(pool: str) -> str:
    """A new id for a request of `pool`."""
    return f"{pool}.{new_ulid()}"


def pool_of(request_id: str) -> str | None:
    """The pool that an id names, or None where it is not an id of ours."""
    match = _ID.fullmatch(request_id)
    return match.group(1) if match else None


def born_ms(request_id: str) -> int | None:
    """Milliseconds since 1970 in the id's ULID, or None where it is not an id of ours."""
    match = _ID.fullmatch(request_id)
    if match is None:
        return None
    number = 0
    for character in match.group(2)[:10]:
        number = number * 32 + _ALPHABET.index(character)
    return number


def new_process_id() -> str:
    """A name for one life of a process: never repeated, without `@`, `/` and `|`."""
    return secrets.token_hex(8)
