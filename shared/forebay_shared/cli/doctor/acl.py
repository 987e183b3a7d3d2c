"""`forebay doctor --acl`: ACL users with the rights that Forebay needs, and no others.

They have no password yet. The placeholder is one that Redis refuses, so that it cannot become a
password by being overlooked.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay_shared.rights import operator_commands, rules, service_commands

PASSWORD = "#SHA256-OF-ITS-PASSWORD"
ADVICE = f"""forebay-service is for producers and workers, forebay-operator for people and deploys.
In place of {PASSWORD} write # and the hash: printf %s "$PASSWORD" | sha256sum
In Forebay's URL, percent-encoded: redis://forebay-service:PASSWORD@HOST"""


@dataclass(frozen=True, slots=True)
class User:
    """An ACL user: whom it is for, and its rules."""

    name: str
    whom: str
    rules: list[str]

    def set_user(self) -> str:
        """For redis-cli."""
        return shlex.join(["ACL", "SETUSER", self.name, "reset", "on", PASSWORD, *self.rules])

    def line(self) -> str:
        """For an ACL file, which knows no quotes and no comments."""
        return " ".join(["user", self.name, "on", PASSWORD, *self.rules])


def users(pools: Sequence[str]) -> list[User]:
    """The two users for these pools, or for all."""
    return [
        User("forebay-service", "producers and workers", rules(service_commands(), pools)),
        User("forebay-operator", "people who run forebay's commands, and deploys",
             rules(operator_commands(), pools)),
    ]  # fmt: skip


def as_commands(pools: Sequence[str]) -> str:
    """Lines for redis-cli."""
    return "\n".join(one.set_user() for one in users(pools))


def as_file(pools: Sequence[str]) -> str:
    """Lines for an ACL file (`aclfile`)."""
    return "\n".join(one.line() for one in users(pools))


def as_rows(pools: Sequence[str]) -> list[dict[str, Any]]:
    """For programs."""
    return [{"user": one.name, "for": one.whom, "rules": one.rules} for one in users(pools)]
