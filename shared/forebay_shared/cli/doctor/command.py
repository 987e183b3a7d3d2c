"""`forebay doctor`: look at Redis and the pools, and say what is wrong and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click
from redis.asyncio import Redis

from forebay_shared.cli.doctor.acl import ADVICE, as_commands, as_file, as_rows
from forebay_shared.cli.doctor.facts import Server, read_server
from forebay_shared.cli.doctor.findings import Finding, Level, worst
from forebay_shared.cli.doctor.libraries import usage
from forebay_shared.cli.doctor.pool_facts import Pool, read_pool
from forebay_shared.cli.doctor.tables import examine
from forebay_shared.cli.doctor.upkeep import load, prune
from forebay_shared.cli.doctor.view import show
from forebay_shared.cli.redis_place import named_or_running, open_redis, redis_options
from forebay_shared.cli.terminal import Told, example, json_option, print_json, run, say
from forebay_shared.connect import each_primary, safe_url
from forebay_shared.keys import POOLS
from forebay_shared.library import LIBRARY_NAME
from forebay_shared.settings import POOL_NAME

EXAMPLES = example("""
  forebay doctor                        # exit code 0: no failure; 1: at least one
  forebay doctor --strict --json        # 1 also where there is a warning
  forebay doctor --load                 # before a deploy: this version's function library
  forebay doctor --prune                # after it: libraries that no living process calls
  forebay doctor --acl --pool default   # Redis users with the least rights
  forebay doctor --acl-file > users.acl
""")
MODES = ("acl", "acl_file", "load", "prune")


def _pools(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [name for name in names if not POOL_NAME.fullmatch(name)]:
        raise click.BadParameter(f"{wrong[0]!r}: a pool's name has 1 to 32 of a-z, 0-9 and -")
    return names


@click.command(epilog=EXAMPLES)
@redis_options
@click.option(
    "--pool",
    "pools",
    multiple=True,
    callback=_pools,
    metavar="NAME",
    help="Only this pool; may be repeated.  [default: all that workers have registered]",
)
@click.option("--strict", is_flag=True, help="Exit with 1 also where there are only warnings.")
@click.option(
    "--scan-s",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    help="Most seconds to search each pool for leaked keys.",
)
@click.option("--acl", is_flag=True, help="Print ACL SETUSER lines instead; asks no Redis.")
@click.option("--acl-file", is_flag=True, help="Print lines for an ACL file instead.")
@click.option("--load", is_flag=True, help="Load this version's function library instead.")
@click.option(
    "--prune", is_flag=True, help="Remove libraries that no living process calls instead."
)
@json_option
def doctor(
    redis_url: str | None, state: Path | None, pools: tuple[str, ...], as_json: bool, **rest: Any
) -> None:
    """Check Redis and the pools on it: persistence, memory, clock, libraries, identities, leaks.

    Nothing is changed. Each finding says what is so, why it matters and what to do. A warning will
    hurt one day; a failure loses requests or stops them, and makes the exit code 1.
    """
    chosen = [mode for mode in MODES if rest[mode]]
    if len(chosen) > 1:
        raise click.UsageError(f"Say one of {', '.join('--' + one for one in MODES)}.")
    if rest["acl"] or rest["acl_file"]:
        _print_acl(pools, as_json, as_text=as_file if rest["acl_file"] else as_commands)
        return
    url = named_or_running(redis_url, state)
    if rest["load"] or rest["prune"]:
        _print_told(run(_load(url) if rest["load"] else _prune(url, rest["scan_s"])), as_json)
        return
    _report(url, run(_examine(url, pools, rest["scan_s"])), as_json, rest["strict"])


def _print_acl(pools: tuple[str, ...], as_json: bool, as_text: Any) -> None:
    if as_json:
        print_json(as_rows(pools))
    else:
        say(ADVICE)
        click.echo(as_text(pools))


def _print_told(told: Told, as_json: bool) -> None:
    if as_json:
        print_json(told.facts)
    else:
        click.echo(told.words)


def _report(url: str, findings: list[Finding], as_json: bool, strict: bool) -> None:
    level = worst(findings)
    if as_json:
        rows = [one.row() for one in findings]
        print_json({"redis": safe_url(url), "level": level.name.lower(), "findings": rows})
    else:
        click.echo(f"Redis at {safe_url(url)}")
        show(findings)
    if level is Level.FAILURE or (strict and level is Level.WARNING):
        raise click.exceptions.Exit(1)


async def _examine(url: str, names: tuple[str, ...], scan_s: float) -> list[Finding]:
    async with open_redis(url) as redis:
        servers = await _servers(redis)
        return examine(servers, await _read_pools(redis, servers, names, scan_s))


async def _load(url: str) -> Told:
    async with open_redis(url) as redis:
        return await load(redis)


async def _prune(url: str, scan_s: float) -> Told:
    async with open_redis(url) as redis:
        servers = await _servers(redis)
        pools = await _read_pools(redis, servers, (), scan_s)
        return await prune(redis, servers, usage(servers, pools))


async def _servers(redis: Redis) -> list[Server]:
    found: list[Server] = []
    async for primary in each_primary(redis):
        found.append(await read_server(primary, "server"))
    if len(found) > 1:
        for number, server in enumerate(found, start=1):
            server.name = f"server {number}, port {server.info.get('tcp_port', 'unknown')}"
    return found


async def _read_pools(
    redis: Redis, servers: list[Server], names: tuple[str, ...], scan_s: float
) -> list[Pool]:
    wanted = names or await _known(redis)
    # Where it may not be listed it is called, and then loaded if that is allowed.
    listed = [one.libraries for one in servers if one.libraries is not None]
    loaded = all(LIBRARY_NAME in names for names in listed)
    return [await read_pool(redis, name, scan_s, is_loaded=loaded) for name in wanted]


async def _known(redis: Redis) -> tuple[str, ...]:
    rows = cast("list[bytes]", await redis.zrange(POOLS, 0, -1))
    return tuple(sorted(row.decode() for row in rows))
