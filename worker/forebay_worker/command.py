"""The command `work`: its options, read and checked."""

from __future__ import annotations

import os
import signal
import sys
from urllib.parse import urlsplit

import click

from forebay_shared import logs
from forebay_shared.connect import connect
from forebay_shared.settings import CLASS_NAME, POOL_NAME
from forebay_worker.engine.profile import PROFILES
from forebay_worker.options import Address, SimOptions, WorkOptions


def _address(_: click.Context, __: click.Parameter, value: str | None) -> Address | None:
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter("write it as HOST:PORT or :PORT")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


def _classes(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    if value == "all":
        return ()
    names = tuple(value.split(","))
    if not all(CLASS_NAME.fullmatch(name) for name in names):
        raise click.BadParameter("write class names with commas between, or: all")
    return names


def _pool(_: click.Context, __: click.Parameter, value: str) -> str:
    if not POOL_NAME.fullmatch(value):
        raise click.BadParameter("a pool's name has 1 to 32 of a-z, 0-9 and -")
    return value


def _redis(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        connect(value)  # connects to nothing yet
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


def _engine(_: click.Context, __: click.Parameter, value: str) -> str:
    parts = urlsplit(value)
    if value != "sim" and not (parts.scheme in ("http", "https") and parts.hostname):
        raise click.BadParameter("write sim or the http(s) URL of an OpenAI-compatible server")
    return value


def _engine_key(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if not os.environ.get(value):
        # Not shown: whoever takes the option for the key itself has written a secret here.
        raise click.BadParameter("write the name of an environment variable that holds the key")
    return os.environ[value]


@click.command()
@click.option(
    "--redis",
    envvar="FOREBAY_REDIS",
    default="redis://127.0.0.1:6379/0",
    show_default=True,
    show_envvar=True,
    callback=_redis,
    help="Redis or Valkey: redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://.",
)
@click.option(
    "--engine",
    default="sim",
    show_default=True,
    callback=_engine,
    help="The engine beside this worker: the base URL of an OpenAI-compatible server such as "
    "vLLM, or sim for a simulated one.",
)
@click.option(
    "--engine-key",
    metavar="VARIABLE",
    callback=_engine_key,
    help="Name of the environment variable that holds the engine's API key.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 100_000),
    help="Most requests in the engine at once.  [default: learned, upwards from 8]",
)
@click.option(
    "--classes",
    default="all",
    show_default=True,
    callback=_classes,
    help="Classes to serve, with commas between.",
)
@click.option("--pool", default="default", show_default=True, callback=_pool, help="Pool to serve.")
@click.option(
    "--admin",
    metavar="HOST:PORT",
    callback=_address,
    help="Listen here for /healthz, /readyz and /metrics.  [default: not at all]",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=25.0,
    show_default=True,
    help="Seconds that running requests have to finish after SIGTERM; then they are given back.",
)
@click.option(
    "--sim-profile",
    type=click.Choice(sorted(PROFILES)),
    default="default",
    show_default=True,
    help="Rates and sizes of the simulated engine; zero serves without delay.",
)
@click.option(
    "--sim-model",
    multiple=True,
    default=("sim",),
    show_default=True,
    help="Model that the simulated engine serves; may be repeated.",
)
@click.option("--sim-seed", default=0, show_default=True, help="Seed of its texts.")
@click.option(
    "--sim-speed",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Divides its times.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Events to write to standard error, one JSON object a line.",
)
def work(
    sim_profile: str,
    sim_model: tuple[str, ...],
    sim_seed: int,
    sim_speed: float,
    grace: float,
    log_level: str,
    **rest: object,
) -> None:
    """Run a worker: take requests from the queue and run them on the engine beside it.

    SIGTERM drains: nothing new is taken, what runs may finish within the grace, the rest is given
    back without blame and runs elsewhere. A second signal gives it back at once.
    """
    # As PID 1 a process ignores signals that it does not handle, and there is nothing to drain yet.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from forebay_worker.worker import run  # heavy: not for --help

    logs.set_up(log_level)
    sim = SimOptions(sim_profile, sim_model, sim_seed, sim_speed)
    sys.exit(run(WorkOptions(sim=sim, grace_s=grace, **rest)))  # type: ignore[arg-type]
