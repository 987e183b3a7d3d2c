"""Every key in Redis, one function each: type, writer and life.

All keys of a pool share the hash tag `{pool}`, so that a pool lives on one node of a cluster.
The same names stand in the key section of the function library (`library/10_keys.lua`); no key is
spelled anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

POOLS = "fb:pools"
"""zset, pool → heartbeat (s since 1970, for people only). By workers. No TTL; own slot."""

EVERY = "fb:*"
"""Pattern of all keys of all pools, for ACL users."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one pool."""

    pool: str

    def _key(self, name: str) -> str:
        return f"fb:{{{self.pool}}}:{name}"

    @property
    def every(self) -> str:
        """Pattern of all keys of this pool, for SCAN and ACL users."""
        return self._key("*")

    @property
    def layout(self) -> str:
        """string, version of the stored layout. By `found`, for ever; first key of every call."""
        return self._key("layout")

    @property
    def never(self) -> str:
        """Never exists. Second key of every call: a cluster answers TRYAGAIN while slots move."""
        return self._key("never")

    def inbox(self, name: str) -> str:
        """stream, ids with news for one producer replica. Made by the replica, short TTL."""
        return self._key(f"inbox:{name}")

    def bell(self, class_name: str) -> str:
        """list ≤ 64, wake-ups for workers with a free slot of the class. By the library."""
        return self._key(f"bell:{class_name}")

    def control(self, worker: str) -> str:
        """list, orders for one worker (`cancel <id> <call>`, `drain`). TTL set at each push."""
        return self._key(f"control:{worker}")

    def prompt(self, request_id: str) -> str:
        """String: token ids of the prompt, while a stream may have to go on. Written by emit."""
        return self._key(f"prompt:{request_id}")

    def output(self, request_id: str) -> str:
        """stream, chunks of a streamed request, entry id `<offset>-0`. TTL set at the end."""
        return self._key(f"output:{request_id}")

    @property
    def models(self) -> str:
        """zset, model → last seen (ms, server time). By `register`. No TTL."""
        return self._key("models")
