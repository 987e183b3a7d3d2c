"""The engines under the flow tests: the same tests run on the simulator and on real vLLM.

Fixtures: `engine_urls`, two engines that serve one model, and `embedding_engine`, one that serves
`/v1/embeddings`. Each has the parameters `sim` and, behind the marker `vllm`, `vllm`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from tests.flow.system import QUICK, UNHURRIED
from tests.vllm.rig import EngineServer, chat_server, embedding_server

from forebay_shared.settings import PoolSettings

Kind = Literal["sim", "vllm"]
KINDS = ("sim", pytest.param("vllm", marks=pytest.mark.vllm))
RUNNING = re.compile(r"^vllm:num_requests_running(?:\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """A running OpenAI-compatible server; `url` has no path and survives `kill` and `restart`."""

    url: str
    model: str
    kind: Kind
    server: EngineServer

    @property
    def settings(self) -> PoolSettings:
        """With leases as short as the engine leaves its workers time to renew."""
        return QUICK if self.kind == "sim" else UNHURRIED

    def running(self) -> int:
        """Requests in service at this moment, as the engine's own /metrics says."""
        values = RUNNING.findall(self.server.get("/metrics").decode())
        if not values:
            raise AssertionError(f"{self.url}/metrics does not say how many requests run")
        return int(sum(map(float, values)))

    def kill(self) -> None:
        """Ends the engine as a crash would; the next test finds it running again."""
        self.server.kill()

    def restart(self) -> None:
        """Brings a killed engine back on the same URL; returns when it is healthy."""
        self.server.start()
        self.server.wait_ready()


def sim_server(folder: Path) -> EngineServer:
    """A simulated engine in a process of its own, not started."""
    command = [sys.executable, "-m", "forebay_worker.engine.sim_http", "--model=sim"]
    return EngineServer([*command, "--host=127.0.0.1"], folder / "sim.log")


@pytest.fixture(scope="session", params=KINDS)
def engine_pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[EngineUnderTest]]:
    """Two engines of a kind for the session; ask for `engine_urls`, which keeps them alive."""
    kind: Kind = request.param
    make: Callable[[Path], EngineServer] = sim_server if kind == "sim" else chat_server
    servers = [make(tmp_path_factory.mktemp(kind)) for _ in range(2)]
    model = "sim" if kind == "sim" else "tiny"
    yield [EngineUnderTest(server.url, model, kind, server) for server in servers]
    stop_all(servers)


@pytest.fixture
def engine_urls(engine_pair: list[EngineUnderTest]) -> list[EngineUnderTest]:
    """Two running engines; one that an earlier test killed has been started again."""
    start_all([engine.server for engine in engine_pair])
    return engine_pair


@pytest.fixture(scope="session", params=KINDS)
def embedder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineUnderTest]:
    """An engine with embeddings for the session; ask for `embedding_engine`."""
    kind: Kind = request.param
    make: Callable[[Path], EngineServer] = sim_server if kind == "sim" else embedding_server
    server = make(tmp_path_factory.mktemp(f"{kind}-embedding"))
    yield EngineUnderTest(server.url, "sim" if kind == "sim" else "minilm", kind, server)
    stop_all([server])


@pytest.fixture
def embedding_engine(embedder: EngineUnderTest) -> EngineUnderTest:
    """A running engine that serves /v1/embeddings."""
    start_all([embedder.server])
    return embedder


@pytest.fixture
def embedding_url(embedding_engine: EngineUnderTest) -> str:
    return embedding_engine.url


def start_all(servers: Sequence[EngineServer]) -> None:
    """Starts those that do not run, side by side, and returns when each is healthy."""
    for server in servers:
        server.start()
    for server in servers:
        server.wait_ready()


def stop_all(servers: Sequence[EngineServer]) -> None:
    for server in servers:
        server.stop()
