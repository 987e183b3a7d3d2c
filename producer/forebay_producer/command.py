"""`forebay serve`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click

from forebay_shared import logs
from forebay_shared.settings import POOL_NAME


def _pools(
    context: click.Context, option: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    for name in names:
        if not POOL_NAME.fullmatch(name):
            raise click.BadParameter(f"{name!r}: a pool's name is made of a-z, 0-9 and - only")
    return names


@click.command(short_help="A producer: the HTTP API.")
@click.option(
    "--redis", "redis_url", default="redis://127.0.0.1:6379/0", show_default=True,
    envvar="FOREBAY_REDIS", show_envvar=True,
    metavar="URL", help="The queue, Redis or Valkey: a redis://, rediss://, unix://, "
    "redis+cluster:// or redis+sentinel:// URL.",
)  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65_535),
    help="Port to listen on; 0 takes a free one and logs it.",
)  # fmt: skip
@click.option(
    "--uds", type=click.Path(path_type=Path), metavar="PATH",
    help="Listen on this unix socket instead.",
)  # fmt: skip
@click.option(
    "--admin", default="", metavar="HOST:PORT",
    help="Serve /metrics, /healthz and /readyz here, to anybody who reaches it. Without it "
    "/metrics is on the main address; if that is not loopback and there are keys, it needs one.",
)  # fmt: skip
@click.option(
    "--keys", "keys_file", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    envvar="FOREBAY_KEYS", show_envvar=True, metavar="FILE",
    help="API keys (keys.toml); read again when it changes. Without it there is one tenant.",
)  # fmt: skip
@click.option(
    "--insecure", is_flag=True,
    help="Listen on other addresses than loopback although there are no keys.",
)  # fmt: skip
@click.option(
    "--pool", "pools", multiple=True, callback=_pools, metavar="NAME",
    help="Serve this pool; may be repeated. Default: every pool that has a worker.",
)  # fmt: skip
@click.option(
    "--serve-on",
    "serve_on_s",
    default=5.0,
    show_default=True,
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="After SIGTERM new requests are served so long: load balancers need time to notice.",
)
@click.option(
    "--grace", "grace_s", default=600.0, show_default=True, type=click.FloatRange(min=0),
    metavar="SECONDS", help="After SIGTERM open answers get so long to finish.",
)  # fmt: skip
@click.option(
    "--log-level", default="info", show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]), help="Log events from here up.",
)  # fmt: skip
def serve(
    redis_url: str, host: str, port: int, uds: Path | None, admin: str, keys_file: Path | None,
    insecure: bool, pools: tuple[str, ...], serve_on_s: float, grace_s: float, log_level: str,
) -> None:  # fmt: skip
    """Run a producer: an OpenAI-compatible API that puts requests into the queue and brings the
    answers back.

    It holds nothing: run as many as you like behind any load balancer. SIGTERM drains it: it is
    not ready any more, serves on for a few seconds, then finishes what is open. A second SIGTERM
    hurries.
    """
    # As PID 1 a process ignores signals that it does not handle, and there is nothing to drain yet.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Loaded here, so that `forebay --help` stays quick.
    from forebay_producer.options import ServeOptions, Timings
    from forebay_producer.serve import run

    logs.set_up(log_level)
    options = ServeOptions(
        redis_url=redis_url, host=host, port=port, admin=admin, pools=tuple(dict.fromkeys(pools)),
        keys_file=keys_file, insecure=insecure, uds=uds,
        timings=Timings(serve_on_s=serve_on_s, grace_s=grace_s),
    )  # fmt: skip
    sys.exit(run(options))
