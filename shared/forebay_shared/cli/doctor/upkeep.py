"""`forebay doctor --load` and `--prune`: the function libraries on the servers."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from forebay_shared.cli.doctor.facts import Server
from forebay_shared.cli.doctor.libraries import Usage
from forebay_shared.cli.terminal import Problem, Told
from forebay_shared.connect import each_primary
from forebay_shared.library import LIBRARY_NAME, source


async def load(redis: Redis) -> Told:
    """Load this version's library on each primary; the others stay."""
    loaded = 0
    async for primary in each_primary(redis):
        loaded += await _load(primary)
    words = "loaded" if loaded else "was there already"
    return Told(f"library {LIBRARY_NAME} {words}", {"library": LIBRARY_NAME, "loaded": loaded})


async def _load(redis: Redis) -> bool:
    try:
        await redis.function_load(source())
    except ResponseError as error:
        if "already exists" not in str(error):
            raise
        return False
    return True


async def prune(redis: Redis, servers: list[Server], use: Usage) -> Told:
    """Remove the libraries that no living process calls. Raises Problem where that is unclear."""
    if use.unclear:
        raise Problem(
            f"nothing was removed, since it is unclear which libraries are called: "
            f"{'; '.join(use.unclear)}. Try again later, when all processes are of versions that "
            "tell it"
        )
    removed = {name for server in servers for name in use.unused(server)}
    async for primary in each_primary(redis):
        for name in removed:
            await _remove(primary, name)
    kept = {
        name: use.by_library.get(name, 0) for server in servers for name in server.libraries or []
    }
    kept = {name: count for name, count in kept.items() if name not in removed}
    lines = [f"removed {name}" for name in sorted(removed)] or ["there was nothing to remove"]
    lines += [f"kept {name}: {_users(name, count)}" for name, count in sorted(kept.items())]
    return Told("\n".join(lines), {"removed": sorted(removed), "kept": kept})


def _users(name: str, count: int) -> str:
    own = ", this version's" if name == LIBRARY_NAME else ""
    return f"{count:,} processes call it{own}"


async def _remove(redis: Redis, name: str) -> None:
    try:
        await redis.function_delete(name)
    except ResponseError as error:
        if "not found" not in str(error):
            raise
