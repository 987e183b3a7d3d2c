"""API keys: told apart by hash, read again when the file changes, refused with a reason."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from forebay_producer.keysfile import EVERYBODY, BadKeysFile, Callers
from forebay_shared.errors import Unauthenticated


def row(key: str, tenant: str, more: str = "") -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f'[[keys]]\nsha256 = "{digest}"\ntenant = "{tenant}"\n{more}\n'


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_without_a_file_everybody_is_one_tenant() -> None:
    assert Callers(None).identify({}) is EVERYBODY
    assert (EVERYBODY.tenant, EVERYBODY.highest_class) == ("default", "high")


def test_a_key_tells_tenant_class_weight_and_limits(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    more = 'highest_class = "critical"\nweight = 2\nestimate = "max_tokens"\n'
    more += "limits = { depth = 5, tokens_per_minute = 1e6 }"
    path.write_text(row("k1", "acme", more) + row("k2", "beta"))
    caller = Callers(path).identify(bearer("k1"))
    assert (caller.tenant, caller.highest_class, caller.weight) == ("acme", "critical", 2)
    assert (caller.limited().depth, caller.limited().tokens_per_minute) == (5, 1e6)
    other = Callers(path).identify({"authorization": "bearer  k2 "})
    assert (other.tenant, caller.estimate, other.estimate) == ("beta", "max_tokens", "learned")


@pytest.mark.parametrize(
    "headers", [{}, bearer(""), bearer("other"), {"authorization": "Basic k1"}]
)
def test_no_key_or_an_unknown_one_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(row("k1", "acme"))
    with pytest.raises(Unauthenticated):
        Callers(path).identify(headers)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "keys"),
        ("keys = 1", "keys"),
        ("[[keys]", "line"),
        ('[[keys]]\nsha256 = "my-secret-key"\ntenant = "a"', "keys.0.sha256"),
        (row("k", "a b"), "keys.0.tenant"),
        (row("k", "a", "weight = 0"), "keys.0.weight"),
        (row("k", "a", 'estimate = "guess"'), "keys.0.estimate"),
        (row("k", "a", "wieght = 1"), "keys.0.wieght"),
        (row("k", "a") + row("k", "b"), "twice"),
        (row("k", "a") + row("l", "a", "weight = 2"), "unlike"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(BadKeysFile, match=why) as caught:
        Callers(path)
    assert "my-secret-key" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKeysFile, match="No such file"):
        Callers(tmp_path / "none.toml")


def test_a_changed_file_is_read_again_and_a_broken_one_leaves_the_old(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(row("k1", "acme"))
    callers = Callers(path)
    assert not callers.reread()
    path.write_text(row("k1", "acme") + row("k2", "beta"))
    assert callers.reread()
    assert callers.identify(bearer("k2")).tenant == "beta"
    path.write_text("broken")
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadKeysFile):
        callers.reread()
    assert callers.identify(bearer("k2")).tenant == "beta"
    assert not callers.reread()
