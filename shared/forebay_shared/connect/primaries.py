"""Where the primaries of a cluster are, or the one that Sentinels watch: asked, kept, doubted.

Whoever connects asks here. The answer is kept until something goes wrong on any connection of this
process: then the next one to connect looks again, and when it finds that a primary has moved, all
connections to the old one are dropped at once, also under calls that wait for an answer. So one
call that fails moves the whole process, and a server that hangs for ever holds up nobody for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from redis import exceptions
from redis.asyncio.connection import Connection

from forebay_shared import logs
from forebay_shared.connect.address import Address, Kind, Node
from forebay_shared.connect.judge import NoPrimary, WrongPlace, why_unusable

ASK_TIMEOUT_S = 2.0
"""A node is given so long to accept, and so long to answer."""
_LAST_SLOT = 16_383

Places = list[tuple[int, int, Node]]
"""First slot, last slot, and who serves them."""


class Follower(Protocol):
    """A connection that was made to where a primary was."""

    slot: int

    def node(self) -> Node: ...

    def leave(self) -> None: ...


class Primaries:
    """One deployment as one process knows it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._ask = _ask_cluster if address.kind is Kind.CLUSTER else _ask_sentinel
        self._nodes = list(address.nodes)
        self._places: Places = []
        self._sure = False
        self._looks = 0
        self._looking = asyncio.Lock()
        self._followers: WeakSet[Follower] = WeakSet()

    async def find(self, slot: int) -> Node:
        """The primary that serves the slot. Raises NoPrimary."""
        if not self._sure:
            await self._look()
        node = self._node(slot)
        if node is None:
            self.doubt()
            raise NoPrimary(f"no server serves slot {slot} now")
        return node

    async def slots(self) -> list[int]:
        """One slot of each primary. Raises NoPrimary."""
        await self._look()
        return list({node: first for first, _, node in self._places}.values())

    def doubt(self) -> None:
        """Something went wrong: look again before the next connection."""
        self._sure = False

    def moved(self, slot: int, node: Node) -> None:
        """A server has said who serves the slot now."""
        others = [row for row in self._places if row[:2] != (slot, slot)]
        self._places = [(slot, slot, node), *others]
        self._drop_strays()

    def follow(self, follower: Follower) -> None:
        """Drop this connection when its primary is another."""
        self._followers.add(follower)

    def _node(self, slot: int) -> Node | None:
        return next((node for a, z, node in self._places if a <= slot <= z), None)

    async def _look(self) -> None:
        """Ask anew; those who come while somebody asks share the answer."""
        looks = self._looks
        async with self._looking:
            if looks != self._looks:
                return
            try:
                self._places = await self._ask_in_turn()
            except exceptions.RedisError:
                if not self._places:
                    raise
                return  # where it was last is still the best guess, and is asked who it is
            self._looks += 1
            self._sure = True
        self._drop_strays()

    async def _ask_in_turn(self) -> Places:
        """The first answer. Each look begins with another node: one may be cut off."""
        errors: list[exceptions.RedisError] = []
        for node in tuple(self._nodes):
            self._nodes.remove(node)
            self._nodes.append(node)
            try:
                places = await self._ask(self._address, node)
            except exceptions.RedisError as error:
                errors.append(error)
                continue
            known = dict.fromkeys([*self._address.nodes, *(node for _, _, node in places)])
            if self._address.kind is Kind.CLUSTER:
                self._nodes = [one for one in self._nodes if one in known]
                self._nodes += [one for one in known if one not in self._nodes]
            return places
        worst = next(filter(why_unusable, errors), errors[-1])
        asked = ", ".join(map(str, self._address.nodes))
        raise NoPrimary(f"nobody says where the primary is ({asked}): {worst}") from worst

    def _drop_strays(self) -> None:
        moves: set[tuple[Node, Node]] = set()
        for follower in tuple(self._followers):
            at, to = follower.node(), self._node(follower.slot)
            if to is not None and to != at:
                moves.add((at, to))
                self._followers.discard(follower)
                follower.leave()
        for at, to in moves:
            logs.event("redis_moved", at=str(at), to=str(to))


_known: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[str, Primaries]]
_known = WeakKeyDictionary()


def primaries_of(address: Address) -> Primaries:
    """What this process knows of the deployment, shared by all connections that hold it."""
    here = _known.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    found = here.get(address.url)
    if found is None:
        found = here[address.url] = Primaries(address)
    return found


async def _ask_sentinel(address: Address, node: Node) -> Places:
    asked = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)
    reply = await _asked(address, node, asked, "a Sentinel")
    if not reply:
        raise WrongPlace(f"the Sentinel at {node} watches no service {address.service!r}")
    return [(0, _LAST_SLOT, Node(reply[0].decode(), int(reply[1])))]


async def _ask_cluster(address: Address, node: Node) -> Places:
    rows = await _asked(address, node, ("CLUSTER", "SLOTS"), "a node of a cluster")
    places = [
        (int(first), int(last), Node(_named(primary[0]) or node.host, int(primary[1])))
        for first, last, primary, *_ in rows
    ]
    if not places:
        raise NoPrimary(f"the cluster that {node} is in serves no slot yet")
    return places


def _named(host: bytes | None) -> str:
    """Empty where a node has no name, or none it may tell: then it is where the one asked is."""
    return "" if host in (None, b"?") else host.decode()


async def _asked(address: Address, node: Node, command: Sequence[str], what: str) -> Any:
    """One question on a connection of its own. Raises RedisError; WrongPlace if it is no `what`."""
    options = {"connection_class": Connection, "protocol": 2, "driver_info": None, **address.asking}
    make = options.pop("connection_class")
    limits = {"socket_timeout": ASK_TIMEOUT_S, "socket_connect_timeout": ASK_TIMEOUT_S}
    connection = make(host=node.host, port=node.port, **limits, **options)
    try:
        await connection.connect()
        await connection.send_command(*command)
        return await connection.read_response()
    except exceptions.ResponseError as error:
        if "unknown command" in str(error).lower() or "cluster support disabled" in str(error):
            raise WrongPlace(f"{node} is not {what}: {error}") from error
        raise
    finally:
        await connection.disconnect(nowait=True)
