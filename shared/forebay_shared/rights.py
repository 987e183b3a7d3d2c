"""Which commands Forebay calls, for ACL users and for the test at each start.

Two users: the *service* (producers and workers) and the *operator*, who also loads the function
library, looks at the server and tidies up. Inner commands run with the caller's rights; they are
read out of the library's text, so that both always say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from forebay_shared.keys import EVERY, POOLS, Keys
from forebay_shared.library import source

Command = tuple[str | int | float, ...]

_INNER = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'(?:,\s*'([A-Z]+)')?")
_PROBE = re.compile(r"\{'([A-Z]+)'[,}]")
_CONTAINERS = ("XGROUP", "XINFO")

ALWAYS = ("client|setname", "cluster|slots", "fcall", "ping", "select")
"""Functions, and what the client sends by itself: its name, where a cluster has a slot, health
checks, a URL's database."""

OPERATOR = (
    "client|list",
    "config|get",
    "function|delete",
    "function|list",
    "function|load",
    "scan",
    "xinfo|consumers",
)
"""What an operator's commands call beside what the service calls."""


def probes(keys: Keys) -> dict[str, Command]:
    """What producers and workers call beside the library, each as a call that changes nothing."""
    return {
        "blpop": ("BLPOP", keys.never, 0.01),
        "info": ("INFO", "memory"),
        "pexpire": ("PEXPIRE", keys.never, 1000),
        "time": ("TIME",),
        "wait": ("WAIT", 0, 1),
        "xadd": ("XADD", keys.never, "NOMKSTREAM", "*", "a", "1"),
        "xread": ("XREAD", "COUNT", 1, "STREAMS", keys.never, "0"),
        "zadd": ("ZADD", POOLS, "XX", 0, "-"),
        "zrange": ("ZRANGE", POOLS, 0, 0),
        "zrangebyscore": ("ZRANGEBYSCORE", keys.models, "+inf", "+inf"),
    }


def inner_commands() -> set[str]:
    """Every command that the library calls, as an ACL names it."""
    text = source()
    found = {f"{a}|{b}" if a in _CONTAINERS else a for a, b in _INNER.findall(text)}
    return {name.lower() for name in found | set(_PROBE.findall(text))}


def service_commands() -> list[str]:
    """What producers and workers may call."""
    return sorted(inner_commands() | probes(Keys("any")).keys() | set(ALWAYS))


def operator_commands() -> list[str]:
    """What those may call who run `forebay`'s commands and load the library."""
    return sorted({*service_commands(), *OPERATOR})


def patterns(pools: Iterable[str]) -> list[str]:
    """Key patterns of these pools, or of all where none is named."""
    named = [Keys(pool).every for pool in pools]
    return [*named, POOLS] if named else [EVERY]


def rules(commands: Sequence[str], pools: Iterable[str]) -> list[str]:
    """An ACL user's rules beside its password: these commands on these pools, and nothing else."""
    keys = [f"~{pattern}" for pattern in patterns(pools)]
    return ["resetkeys", *keys, "resetchannels", "-@all", *(f"+{name}" for name in commands)]
