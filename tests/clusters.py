"""Throwaway clusters of real servers, made by the commands that cluster tools send themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self

import redis
from redis.crc import key_slot
from tests.servers import free_port, start_server

SLOTS = 16_384
PRIMARIES = 3
SETTLE_S = 20.0
PATIENT_S = 10.0
"""Silence that makes a failover; long enough for a busy machine. Tests of failover take 1 s."""
OPTIONS = (
    "--cluster-enabled", "yes", "--cluster-replica-validity-factor", "0",
    "--repl-diskless-sync-delay", "0", "--shutdown-timeout", "0",
)  # fmt: skip


def wait_until(holds: Callable[[], bool], what: str, within_s: float = SETTLE_S) -> None:
    """Returns when it holds; servers are asked every few milliseconds."""
    began = monotonic()
    while not holds():
        assert monotonic() - began < within_s, f"not within {within_s:g} s: {what}"
        sleep(0.01)


class ClusterNode:
    """A server of a cluster; `client` speaks to it alone."""

    def __init__(self, folder: Path, silence_s: float) -> None:
        folder.mkdir(parents=True)
        self.bus_port = free_port()
        timeout = ("--cluster-node-timeout", str(int(1_000 * silence_s)))
        options = (*OPTIONS, *timeout, "--cluster-port", str(self.bus_port))
        self.server = start_server(folder, port=0, extra=options)
        self.port = int(self.server.url.rpartition(":")[2])
        self.client = redis.Redis(port=self.port, socket_timeout=5, protocol=2)
        self.id: str = self.ask("CLUSTER", "MYID").decode()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, *command: Any) -> Any:
        """The raw reply to one command."""
        connection = self.client.connection_pool.get_connection()
        try:
            connection.send_command(*command)
            return connection.read_response()
        finally:
            self.client.connection_pool.release(connection)

    def is_primary(self) -> bool:
        return bool(self.ask("ROLE")[0] == b"master")

    def knows(self, slot: int) -> str:
        """Id of the node that serves the slot, as this node sees it; empty where none does."""
        for first, last, primary, *_ in self.ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return str(primary[2].decode())
        return ""

    def settled(self, nodes: int) -> bool:
        said = self.ask("CLUSTER", "INFO").decode()
        return "cluster_state:ok" in said and f"cluster_known_nodes:{nodes}\r" in said

    def synced(self) -> bool:
        return self.client.info("replication").get("master_link_status") == "up"

    def stop(self) -> None:
        self.client.close()
        self.server.stop()


class Cluster:
    """Three primaries that share all slots; a context manager.

    Of `replicas`, each follows the primary that has its key. A primary that is silent for
    `silence_s` is voted out.
    """

    def __init__(
        self, folder: Path, replicas: Sequence[str] = (), silence_s: float = PATIENT_S
    ) -> None:
        with ExitStack() as undo:
            self.nodes: list[ClusterNode] = []
            for number in range(PRIMARIES + len(replicas)):
                self.nodes.append(ClusterNode(folder / f"node-{number}", silence_s))
                undo.callback(self.nodes[-1].stop)
            self._join()
            self._replicate(replicas)
            undo.pop_all()
        listed = ",".join(node.place for node in self.nodes)
        self.url = f"redis+cluster://{listed}"

    def _join(self) -> None:
        first, *others = self.nodes
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in others:
            first.ask("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        share = [SLOTS * number // PRIMARIES for number in range(PRIMARIES + 1)]
        for node, start, end in zip(self.nodes, share, share[1:], strict=False):
            node.ask("CLUSTER", "ADDSLOTSRANGE", start, end - 1)
        self.wait_settled()

    def _replicate(self, keys: Sequence[str]) -> None:
        replicas = self.nodes[PRIMARIES:]
        for node, owner in zip(replicas, [self.owner(key) for key in keys], strict=True):
            node.ask("CLUSTER", "REPLICATE", owner.id)
        for node in replicas:
            wait_until(node.synced, f"{node.place} is in sync")

    def wait_settled(self) -> None:
        """Returns when each node sees all nodes, and all slots served."""
        for node in self.nodes:
            wait_until(lambda one=node: one.settled(len(self.nodes)), f"{node.place} is settled")  # type: ignore[misc]

    def owner(self, key: str) -> ClusterNode:
        """The primary that serves the key, as it knows itself."""
        slot = key_slot(key.encode())
        serving = [node for node in self.primaries() if node.knows(slot) == node.id]
        return max(serving, key=self.nodes.index)  # of two, the promoted replica

    def primaries(self) -> list[ClusterNode]:
        """Of the nodes that run."""
        return [node for node in self.nodes if node.server.running and node.is_primary()]

    def move_slot(self, key: str, to: ClusterNode, each: Callable[[], None] = lambda: None) -> None:
        """Moves the key's slot to another primary, key by key, as cluster tools do."""
        slot, source = key_slot(key.encode()), self.owner(key)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10):
            source.ask("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)
            each()
        for node in (to, source, *self.primaries()):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.id)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.stop()
