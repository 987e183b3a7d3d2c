"""Real vLLM as a place of a chaos run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.history import History
from tests.vllm.rig import chat_server


class VllmPlace:
    """A vLLM server of the tiny model: all its processes are killed and stopped together.

    Its clock is the machine's, and what it logs is its own affair.
    """

    def __init__(self, name: str, folder: Path, model: str, history: History) -> None:
        self.name = name
        self.told_to_end = False
        self.lives = 0
        self._history = history
        (folder / name).mkdir()
        self._server = chat_server(folder / name, model)
        self.log = self._server.log
        self.url = self._server.url
        self.probe = self._server.url + "/health"

    def start(self) -> None:
        self.told_to_end = False
        self.lives += 1
        self._server.start()
        self._history.write("life", name=self.name, pid=self.pid, skew_s=0.0, library="")

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def code(self) -> int | None:
        """Something where it does not run: what, its log tells."""
        return None if self._server.alive() else 1

    def send(self, number: signal.Signals) -> None:
        self._server.send(number)

    def kill(self) -> None:
        self.told_to_end = True
        self._server.kill()

    def complaints(self) -> Iterator[str]:
        return iter(())
