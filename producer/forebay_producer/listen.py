"""Where a producer listens: addresses read, checked and bound before anything is served."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path

from forebay_producer.options import ServeOptions

_BACKLOG = 2048
_LONGEST_UDS_BYTES = 107


class CannotServe(Exception):
    """The options cannot be served; the message says which and why."""


def require_safe(options: ServeOptions) -> None:
    """Without keys everybody is the same tenant. Raises CannotServe where that is not wanted."""
    if options.keys_file or options.insecure or options.uds or is_loopback(options.host):
        return
    raise CannotServe(
        f"--host {options.host} would serve anybody without a key: give --keys FILE, or say "
        "--insecure, or listen on 127.0.0.1"
    )


def metrics_need_key(options: ServeOptions) -> bool:
    """Whether strangers reach the main address, and metrics are there, and there are keys."""
    reached = not (options.uds or is_loopback(options.host))
    return reached and options.keys_file is not None and not options.admin


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[HOST]:PORT`, `:PORT` or `PORT` as (host, port). Raises CannotServe."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise CannotServe(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises CannotServe."""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise CannotServe(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def bind_uds(path: Path) -> socket.socket:
    """A listening unix socket for the user and the group alone. Raises CannotServe.

    A socket that a dead process left behind gives way, one that is listened on does not.
    """
    _require_uds(path)
    listener = socket.socket(socket.AF_UNIX)
    try:
        if _is_left_behind(path):
            path.unlink()
        mask = os.umask(0o117)  # not a chmod afterwards: nobody else ever gets in
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotServe(f"cannot listen on {path}: {error.strerror or error}") from None
    return listener


def _is_left_behind(path: Path) -> bool:
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


def _require_uds(path: Path) -> None:
    if len(str(path.absolute()).encode()) > _LONGEST_UDS_BYTES:
        raise CannotServe(f"{path}: a socket's path may have {_LONGEST_UDS_BYTES} bytes")
    if not path.absolute().parent.is_dir():
        raise CannotServe(f"{path}: there is no such folder")


def shown_address(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
