"""Throwaway primaries with a replica, watched by Sentinels."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import redis
from tests.clusters import PATIENT_S, wait_until
from tests.servers import Server, free_port, start_server

from forebay_shared.embedded.finder import find_server
from forebay_shared.embedded.process import ServerProcess

SERVICE = "waterworks"
OPTIONS = ("--repl-diskless-sync-delay", "0", "--shutdown-timeout", "0")


class SentinelProcess:
    """A Sentinel; its configuration, which it writes itself, is in its folder."""

    def __init__(self, folder: Path, primary_port: int, quorum: int, silence_s: float) -> None:
        folder.mkdir(parents=True)
        self.port = free_port()
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} {quorum}\n"
            f"sentinel down-after-milliseconds {SERVICE} {int(1_000 * silence_s)}\n"
            f"sentinel failover-timeout {SERVICE} 4000\n"
        )
        command = [find_server().path, config, "--sentinel"]
        self._process = ServerProcess(command, folder / "sentinel.log")
        self.client = redis.Redis(port=self.port, socket_timeout=5)
        wait_until(self._answers, "the Sentinel answers")

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            assert self._process.alive, "the Sentinel has ended"
            return False

    def primary_port(self) -> int:
        return int(self.client.sentinel_get_master_addr_by_name(SERVICE)[1])

    def sees(self, replicas: int, sentinels: int) -> bool:
        said = self.client.sentinel_master(SERVICE)
        return said["num-slaves"] == replicas and said["num-other-sentinels"] == sentinels

    def stop(self) -> None:
        self.client.close()
        self._process.stop()


class Watched:
    """A primary, its replicas and Sentinels; a context manager.

    A primary that is silent for `silence_s` is replaced.
    """

    def __init__(
        self,
        folder: Path,
        replicas: int = 1,
        sentinels: int = 1,
        silence_s: float = PATIENT_S,
    ) -> None:
        with ExitStack() as undo:
            self.servers: list[Server] = []
            self.sentinels: list[SentinelProcess] = []
            for number in range(1 + replicas):
                self._start_server(folder / f"server-{number}", undo)
            self.wait_in_sync()
            for number in range(sentinels):
                home, quorum = folder / f"sentinel-{number}", sentinels // 2 + 1
                port = _port(self.servers[0])
                self.sentinels.append(SentinelProcess(home, port, quorum, silence_s))
                undo.callback(self.sentinels[-1].stop)
            for one in self.sentinels:
                wait_until(partial(one.sees, replicas, sentinels - 1), "the Sentinels see all")
            undo.pop_all()
        listed = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        self.url = f"redis+sentinel://{listed}/{SERVICE}"

    def _start_server(self, home: Path, undo: ExitStack) -> None:
        home.mkdir(parents=True)
        behind = ("--replicaof", f"127.0.0.1 {_port(self.servers[0])}") if self.servers else ()
        self.servers.append(start_server(home, port=0, extra=(*OPTIONS, *behind)))
        undo.callback(self.servers[-1].stop)

    @property
    def primary(self) -> Server:
        """As the first Sentinel sees it."""
        port = self.sentinels[0].primary_port()
        return next(one for one in self.servers if _port(one) == port)

    @property
    def replicas(self) -> list[Server]:
        return [one for one in self.servers if one is not self.primary]

    def wait_in_sync(self) -> None:
        """Returns when all servers have what the first has."""
        for one in self.servers[1:]:
            with redis.Redis.from_url(one.url) as client:
                wait_until(partial(_in_sync, client), "the replica is in sync")

    def stop(self) -> None:
        for one in (*self.sentinels, *self.servers):
            one.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.stop()


def _in_sync(client: redis.Redis) -> bool:
    return client.info("replication").get("master_link_status") == "up"


def _port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])
