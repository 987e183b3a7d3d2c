"""Single checks, on what a server might say of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from forebay_shared.cli.doctor.clients import clients
from forebay_shared.cli.doctor.clock import clock
from forebay_shared.cli.doctor.facts import Clock, Server
from forebay_shared.cli.doctor.findings import Finding, Level
from forebay_shared.cli.doctor.memory import memory
from forebay_shared.cli.doctor.persistence import persistence
from forebay_shared.cli.doctor.replication import replication

Check = Callable[[Server], Iterable[Finding]]
AOF = {"aof_enabled": 1}
EVERYSEC, ALWAYS = {"appendfsync": "everysec"}, {"appendfsync": "always"}
REPLICA = {"ip": "10.0.0.2", "port": 6379, "state": "online", "offset": 1, "lag": 0}


@pytest.mark.parametrize(
    ("check", "info", "config", "level", "words"),
    [
        (persistence, AOF, EVERYSEC, Level.OK, "appendfsync everysec"),
        (persistence, AOF | {"aof_last_write_status": "err"}, {}, Level.FAILURE, "last write"),
        (persistence, AOF | {"aof_last_bgrewrite_status": "err"}, {}, Level.WARNING, "rewrite"),
        (persistence, AOF | {"aof_delayed_fsync": 7}, EVERYSEC, Level.WARNING, "sync 7 times"),
        (persistence, AOF | {"aof_delayed_fsync": 7}, ALWAYS, Level.OK, "always"),
        (persistence, AOF | {"rdb_last_bgsave_status": "err"}, {}, Level.FAILURE, "last snapshot"),
        (persistence, {}, {"save": "3600 1"}, Level.FAILURE, "what came after the last snapshot"),
        (persistence, {}, {"save": ""}, Level.FAILURE, "everything is lost"),
        (memory, {"used_memory": 84, "maxmemory": 100}, {}, Level.WARNING, "producers refuse"),
        (memory, {"used_memory": 85, "maxmemory": 100}, {}, Level.FAILURE, "producers refuse"),
        (memory, {"used_memory": 10, "maxmemory": 100}, {}, Level.OK, "used"),
        (clients, {"connected_clients": 80, "maxclients": 100}, {}, Level.WARNING, "80 of 100"),
        (clients, {"connected_clients": 79, "maxclients": 100}, {}, Level.OK, "79 connections"),
        (clients, {}, {"timeout": "300"}, Level.OK, "connections"),
        (replication, {"role": "slave"}, {}, Level.FAILURE, "is a replica"),
        (replication, {"role": "master", "connected_slaves": 1, "slave0": REPLICA},
         {"min-replicas-to-write": "0"}, Level.WARNING, "min-replicas-to-write is 0"),
        (replication, {"role": "master", "connected_slaves": 1, "slave0": REPLICA | {"lag": 60},
         "min_slaves_good_slaves": 1}, {"min-replicas-to-write": "1"}, Level.WARNING, "behind"),
        (replication, {"connected_slaves": 1, "slave0": REPLICA, "min_slaves_good_slaves": 1},
         {"min-replicas-to-write": "1"}, Level.OK, "primary with 1 replicas"),
        (replication, {"connected_slaves": 2, "min_slaves_good_slaves": 0},
         {"min-replicas-to-write": "1"}, Level.FAILURE, "0 are there in time"),
    ],
)  # fmt: skip
def test_a_check(
    check: Check, info: dict[str, Any], config: dict[str, str], level: Level, words: str
) -> None:
    """The worst finding's level, and its words."""
    found = list(check(Server("server", info, config)))
    one = max(found, key=lambda finding: finding.level)
    assert one.level is level
    assert words in " ".join([one.what, one.why, one.todo])


@pytest.mark.parametrize(
    ("value", "level", "words"),
    [
        (Clock(0.2, 0.1, 0.0), Level.OK, "agree within 0.300 s"),
        (Clock(6.0, 2.0, 0.0), Level.OK, "agree within"),
        (Clock(60.0, 0.1, 0.0), Level.WARNING, "60.0 s ahead of this machine's"),
        (Clock(-60.0, 0.1, 0.0), Level.WARNING, "60.0 s behind this machine's"),
        (Clock(0.0, 0.1, 1.5), Level.WARNING, "went back by 1.500 s"),
    ],
)
def test_the_clock(value: Clock, level: Level, words: str) -> None:
    """Doubt is in favour of the clock."""
    one = max(clock(Server("server", clock=value)), key=lambda finding: finding.level)
    assert one.level is level
    assert words in one.what


def test_nothing_known_is_no_alarm() -> None:
    """A service that tells neither numbers nor settings is not called broken for that."""
    for check in (clients, replication):
        assert max(one.level for one in check(Server("server"))) is Level.OK
