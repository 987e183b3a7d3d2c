"""Where the embedded server keeps its data, and the lock that lets one server in at a time.

The state folder holds `redis/` with everything of the server: data, log, socket, lock. Two servers
on one folder would both start without complaint and corrupt each other's data, so the server
process itself inherits the lock: it is free exactly when no such process is left.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import stat
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from forebay_shared.embedded.finder import EmbeddedError

# The kernel's sun_path has 108 bytes on Linux and 104 on macOS, and the last is a NUL.
MAX_SOCKET_BYTES = 103 if sys.platform == "darwin" else 107


class FolderUnusable(EmbeddedError):
    """The state folder cannot be used; name another in FOREBAY_STATE."""


class FolderInUse(EmbeddedError):
    """Another embedded server has the folder; stop it, or connect to it."""


def default_state_dir() -> Path:
    """$FOREBAY_STATE, else the place where this system keeps a user's state."""
    if chosen := os.environ.get("FOREBAY_STATE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "forebay"
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The XDG specification has relative paths ignored.
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "forebay"


@dataclass(frozen=True)
class Record:
    """What the holder of the lock wrote about itself."""

    pid: int
    url: str


class ServerFolder:
    """`redis/` in a state folder: private to its user, with a lock and a record of who has it."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "redis"
        self.log = self.path / "server.log"
        self._lock = self.path / "lock"

    def prepare(self) -> None:
        """Makes the folder. Raises FolderUnusable where it cannot, or it is another user's."""
        make_private(self.path)

    def open_lock(self) -> int:
        """Opens the lock file, for `try_lock`, `wait_lock` and a server to inherit.

        The lock belongs to what was opened: it is free when the last copy of the descriptor,
        here or in the server, is closed.
        """
        return os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_lock(self, fd: int) -> bool:
        """Takes the lock unless somebody has it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise FolderUnusable(
                f"{self.path} is on a file system without locks ({error.strerror}); "
                "set FOREBAY_STATE to a folder on a local disk"
            ) from error
        return True

    def wait_lock(self, fd: int, wait_s: float) -> bool:
        """As `try_lock`, giving a server that is just going down up to `wait_s` for it.

        flock knows no time limit, so a thread waits, on a copy of `fd` that shares its lock. If
        it comes too late, the lock goes as soon as the caller has closed `fd`.
        """
        taken = threading.Event()
        threading.Thread(target=_take, args=(os.dup(fd), taken), daemon=True).start()
        return taken.wait(wait_s)

    def write_record(self, record: Record | None) -> None:
        """Says who has the lock; only its holder may. None while that is not known yet."""
        text = json.dumps({"pid": record.pid, "url": record.url}) if record else ""
        self._lock.write_text(text)

    def read_record(self) -> Record | None:
        """What the last holder wrote; it need not be alive."""
        try:
            fields = json.loads(self._lock.read_text())
            return Record(int(fields["pid"]), str(fields["url"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None  # never used, or being written at this moment

    def socket_path(self) -> Path:
        """In the folder, or where that is too long for a socket in a short one of its own."""
        wanted = self.path / "redis.sock"
        if _fits(wanted):
            return wanted
        digest = hashlib.sha256(os.fsencode(self.path.absolute())).hexdigest()[:16]
        for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
            short = Path(base or "") / f"forebay-{os.geteuid()}-{digest}" / "redis.sock"
            if short.is_absolute() and _fits(short):
                make_private(short.parent)
                return short
        raise FolderUnusable(f"no folder for a socket with a path ≤ {MAX_SOCKET_BYTES} bytes")


def running_url(state_dir: Path | None = None) -> str | None:
    """The URL of the embedded server that runs on a state folder; None where none does."""
    record = ServerFolder(state_dir or default_state_dir()).read_record()
    return record.url if record and _listens(record.url) else None


def socket_url(path: Path) -> str:
    return f"unix://{quote(os.fspath(path))}"


def make_private(path: Path) -> None:
    """Makes a folder that only this user may enter, or checks that it is one."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise FolderUnusable(f"{path} is not a folder of this user; set FOREBAY_STATE")
        if found.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise FolderUnusable(
            f"{path} cannot be made ({error.strerror}); set FOREBAY_STATE to another folder"
        ) from error


def _take(fd: int, taken: threading.Event) -> None:
    fcntl.flock(fd, fcntl.LOCK_EX)
    taken.set()
    os.close(fd)


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_BYTES


def _listens(url: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(unquote(urlsplit(url).path))
        except OSError:
            return False  # no such socket, or nobody behind it any more
    return True
