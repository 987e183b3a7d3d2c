"""`forebay up`: the whole system on this machine."""

from __future__ import annotations

import asyncio
import errno
import shlex
import socket
from pathlib import Path
from typing import Any

import click

from forebay_shared.cli.local_redis import running_redis
from forebay_shared.cli.system import Plan, System
from forebay_shared.cli.terminal import Problem, example, json_option
from forebay_shared.cli.voice import JsonVoice, Voice

EXAMPLES = example("""
  forebay up                                        # simulated engine, embedded Redis
  forebay up --ask "What does a forebay do?"
  forebay up --engine http://127.0.0.1:8001         # a vLLM that runs already
  forebay up --redis redis://127.0.0.1:6379/0 --workers 2 --port 9000
""")


@click.command(epilog=EXAMPLES)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--redis",
    "redis_url",
    envvar="FOREBAY_REDIS",
    help="redis://, rediss://, unix://, redis+cluster:// or redis+sentinel:// URL.  "
    "[env var: FOREBAY_REDIS; default: an embedded server]",
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the embedded server.  [env var: FOREBAY_STATE; default: the user's]",
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    default=("sim",),
    show_default=True,
    help="Base URL of an OpenAI-compatible server such as vLLM, or sim for a simulated one; may be "
    "repeated.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Workers beside each engine.",
)
@click.option("--slots", type=click.IntRange(min=1), help="Most requests in an engine at once.")
@click.option(
    "--engine-key",
    metavar="VARIABLE",
    help="Environment variable that holds the engines' API key.",
)
@click.option("--ask", metavar="TEXT", help="Ask this once everything is ready, then serve.")
@click.option(
    "--keys",
    type=click.Path(exists=True, dir_okay=False),
    help="API keys (keys.toml), see `forebay serve --help`.",
)
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without keys.")
@click.option(
    "--api-key",
    envvar="FOREBAY_API_KEY",
    help="The key that --ask uses where --keys are.  [env var: FOREBAY_API_KEY]",
)
@json_option
def up(host: str, port: int, redis_url: str | None, state: Path | None, **rest: Any) -> None:
    """Start Redis, a producer and workers here, and serve until ^C.

    Redis is an embedded server that keeps its data in the user's state folder, unless --redis
    names one. A child that dies is told and started again. ^C stops in order: open answers
    finish first; a second ^C hurries.
    """
    port = free_port(host, port)
    plan = _plan(host, port, **rest)
    with running_redis(redis_url, state) as redis:
        look = f" --state {shlex.quote(str(state))}" if state and not redis_url else ""
        system = System(plan, redis, (JsonVoice if rest["as_json"] else Voice)(look))
        well = asyncio.run(system.run())
    raise click.exceptions.Exit(0 if well else 1)


def _plan(
    host: str,
    port: int,
    *,
    engines: tuple[str, ...],
    workers: int,
    slots: int | None,
    engine_key: str | None,
    ask: str | None,
    keys: str | None,
    insecure: bool,
    api_key: str | None,
    as_json: bool,
) -> Plan:
    if keys and ask and not api_key:
        raise click.UsageError("With --keys the question needs a key: give --api-key as well.")
    serve = [*(("--keys", keys) if keys else ()), *(["--insecure"] if insecure else ())]
    work = ["--slots", str(slots)] if slots else []
    work += ["--engine-key", engine_key] if engine_key else []
    return Plan(host, port, engines, workers, tuple(serve), tuple(work), ask, api_key)


def free_port(host: str, port: int) -> int:
    """The port, or a free one for 0. Raises Problem where it cannot be listened on."""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.create_server(address[:2], family=family) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Problem(
                f"port {port} on {host} is taken; stop what listens there, "
                "or choose another with --port"
            ) from None
        raise Problem(
            f"cannot listen on {host}:{port} ({error.strerror}); "
            "choose others with --host and --port"
        ) from None
