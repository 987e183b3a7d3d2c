"""The simulated engine as an OpenAI-compatible server of its own process.

    python -m forebay_worker.engine.sim_http --port 0 --slots 16

prints `listening on http://127.0.0.1:PORT` when it is ready. Paths as vLLM's: /health,
/v1/models, /v1/…, /metrics; beside them `GET /sim/log`, a JSON list of the calls seen:

    {"id": X-Request-Id, "started_s", "ended_s": null while it runs,
     "outcome": "done" | "aborted" | "failed" | null, "output_tokens"}

The fault `crash` ends the process at once. SIGTERM ends running texts with finish reason
`abort`, as vLLM does.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import uvicorn

from forebay_worker.engine.profile import PROFILES, Profile
from forebay_worker.engine.sim import SimEngine
from forebay_worker.engine.sim_app import SimApp

_GRACE_S = 5
_BACKLOG = 2_048


class MortalEngine(SimEngine):
    """A SimEngine whose crash takes the process along."""

    def crash(self) -> None:
        os._exit(1)


class SimServer(uvicorn.Server):
    """Tells on stdout when it listens, and aborts running texts before it stops."""

    def __init__(self, config: uvicorn.Config, engine: SimEngine, address: str) -> None:
        super().__init__(config)
        self._engine = engine
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._engine.start()
        await super().startup(sockets)
        sys.stdout.write(f"listening on {self._address}\n")
        sys.stdout.flush()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine.abort_all()
        await super().shutdown(sockets)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    options = _parser().parse_args(arguments)
    engine = MortalEngine(
        profile=_profile(options),
        models=options.model or ["sim"],
        seed=options.seed,
        speed=options.speed,
    )
    sock, address = _listen(options)
    config = uvicorn.Config(
        SimApp(engine),
        lifespan="off",
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    SimServer(config, engine, address).run(sockets=[sock])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sim_http", description="A simulated engine.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--uds", help="listen on this unix socket instead")
    parser.add_argument("--model", action="append", help="repeat for several; default sim")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", type=float, default=1.0, help="divides all times")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="default")
    parser.add_argument("--slots", type=int)
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--num-blocks", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--scheduling", choices=("fcfs", "priority"))
    return parser


def _profile(options: argparse.Namespace) -> Profile:
    names = ("slots", "block_size", "num_blocks", "max_model_len", "scheduling")
    given: dict[str, Any] = {name: getattr(options, name) for name in names}
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(PROFILES[options.profile], **changes)


def _listen(options: argparse.Namespace) -> tuple[socket.socket, str]:
    if options.uds:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(options.uds)
        sock.listen(_BACKLOG)
        return sock, f"unix:{options.uds}"
    sock = socket.create_server((options.host, options.port), backlog=_BACKLOG)
    return sock, f"http://{options.host}:{sock.getsockname()[1]}"


if __name__ == "__main__":
    main()
