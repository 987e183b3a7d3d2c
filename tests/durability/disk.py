"""A server whose syncs are slowed and noted, and the loss of power that follows from the notes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from forebay_shared.embedded.finder import find_server

SOURCE = Path(__file__).with_name("power.c")


class Disk:
    """`binary` is what to start as a server; see power.c."""

    def __init__(self, folder: Path, sync_ms: int) -> None:
        self._notes = folder / "synced"
        self._notes.mkdir()
        self.binary = folder / "server"
        library = folder / "power.so"
        subprocess.run([_compiler(), "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        preload = f"LD_PRELOAD={shlex.quote(str(library))}"
        notes = f"FOREBAY_SYNC_NOTES={shlex.quote(str(self._notes))} FOREBAY_SYNC_MS={sync_ms}"
        server = shlex.quote(str(find_server().path))
        self.binary.write_text(f'#!/bin/sh\n{preload} {notes} exec {server} "$@"\n')
        self.binary.chmod(0o700)

    def lose_power(self, folder: Path) -> int:
        """Cut the server's append-only files where they were safe; the bytes that went."""
        gone = 0
        for file in folder.rglob("*.incr.aof"):
            note = self._notes / file.name
            safe = int(note.read_text()) if note.exists() else 0
            gone += max(0, file.stat().st_size - safe)
            os.truncate(file, min(safe, file.stat().st_size))
        return gone


def is_there() -> bool:
    """Whether this machine can preload: Linux with a C compiler."""
    return sys.platform == "linux" and bool(_compiler())


def _compiler() -> str:
    return shutil.which("cc") or shutil.which("gcc") or ""
