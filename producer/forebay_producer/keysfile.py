"""Who calls: API keys from `keys.toml`, stored as hashes.

    [[keys]]
    sha256 = "5e88…"            # hex of the SHA-256 of the key, see `printf %s "$KEY" | sha256sum`
    tenant = "acme"
    highest_class = "high"      # may ask for this class and those below; default high
    estimate = "learned"        # or "max_tokens": expect that every answer is as long as it may be
    weight = 2.0                # share inside a class relative to other tenants; default 1
    limits = { depth = 100, requests_per_minute = 600, tokens_per_minute = 1e6 }

Several keys may belong to one tenant. Without a file everybody is the tenant `default`.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forebay_shared.calls.requests import Limits
from forebay_shared.errors import Unauthenticated


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _LimitsRow(_Strict):
    depth: int = Field(default=0, ge=0)
    bytes: int = Field(default=0, ge=0)
    requests_per_minute: float = Field(default=0, ge=0)
    tokens_per_minute: float = Field(default=0, ge=0)


class Caller(_Strict):
    """Who a request is charged to, and what it may ask for."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
    tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    highest_class: Annotated[str, Field(pattern=r"^[a-z]{1,16}$")] = "high"
    estimate: Literal["learned", "max_tokens"] = "learned"
    weight: float = Field(default=1.0, gt=0)
    limits: _LimitsRow = _LimitsRow()

    def limited(self) -> Limits:
        """The tenant's limits as the library takes them."""
        row = self.limits
        return Limits(row.depth, row.bytes, row.requests_per_minute, row.tokens_per_minute)


class _File(_Strict):
    keys: tuple[Caller, ...] = Field(min_length=1)


EVERYBODY = Caller(sha256="0" * 64, tenant="default")


class BadKeysFile(ValueError):
    """The keys file cannot be used; the message names the place, never a key."""


def read_keys(path: Path) -> dict[str, Caller]:
    """Hash → caller. Raises BadKeysFile."""
    try:
        rows = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))).keys
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadKeysFile(f"{path}: {place}: {first['msg']}") from None
    except (OSError, ValueError) as error:
        raise BadKeysFile(f"{path}: {error}") from None
    callers = {row.sha256.lower(): row for row in rows}
    if len(callers) != len(rows):
        raise BadKeysFile(f"{path}: the same sha256 stands there twice")
    _require_one_share_each(path, rows)
    return callers


def _require_one_share_each(path: Path, rows: Sequence[Caller]) -> None:
    shares: dict[str, tuple[float, _LimitsRow]] = {}
    for row in rows:
        share = (row.weight, row.limits)
        if shares.setdefault(row.tenant, share) != share:
            raise BadKeysFile(f"{path}: tenant {row.tenant} has keys with unlike weight or limits")


class Callers:
    """Tells callers by their keys; reads the file again when it has changed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = self._stamp_now()
        self._callers = read_keys(path) if path else {}

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """Who sent these headers. Raises Unauthenticated."""
        if self._path is None:
            return EVERYBODY
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthenticated("You need an API key: send `Authorization: Bearer KEY`.")
        # Looked up by hash: the time of the look-up tells nothing about a key.
        caller = self._callers.get(hashlib.sha256(key.strip().encode()).hexdigest())
        if caller is None:
            raise Unauthenticated("This API key is not known.")
        return caller

    def reread(self) -> bool:
        """Read the file if it changed; whether it did. Raises BadKeysFile; old keys stay then."""
        stamp = self._stamp_now()
        if self._path is None or stamp == self._stamp:
            return False
        self._stamp = stamp
        self._callers = read_keys(self._path)
        return True

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat() if self._path else None
        except OSError:
            return None  # reading it will say why
        return (found.st_mtime_ns, found.st_size, found.st_ino) if found else None
