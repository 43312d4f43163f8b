"""Sockets that a server listens at. They are made before the server is, so that an address which is taken is told at
once, and connections wait while the rest is loaded.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from repertory.errors import Invalid, Unavailable

try:
    import resource
except ImportError:  # pragma: no cover - on Windows
    resource = None

BACKLOG = 1024
"""Connections that wait to be taken while a process is busy, or is being replaced."""


DESCRIPTORS_WANTED = 65_536
"""Connections and files that a process of a service may have open, where the system lets it."""
_OWN_DESCRIPTORS = 48
"""Files that stay for the process itself, whatever connections there are: an idle service has about 20 open."""


def raise_descriptors() -> int:
    """Let this process, and those that it starts, open as many files as it may, up to `DESCRIPTORS_WANTED`. Returns how
    many that are.
    """
    if resource is None:
        return DESCRIPTORS_WANTED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def connections_max(descriptors: int | None = None) -> int:
    """The connections that a server takes at once, of the files that a process may have open (default: this process).

    The rest is for stores, models and modules: a process whose clients hold every descriptor can answer nobody.
    """
    if descriptors is None:
        soft = DESCRIPTORS_WANTED if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        descriptors = soft if soft > 0 else DESCRIPTORS_WANTED  # Without a limit it is negative.
    return max(1, descriptors - max(_OWN_DESCRIPTORS, descriptors // 4))


def split_address(address: str) -> tuple[str, int]:
    """The host and the port of `HOST:PORT`, `[HOST]:PORT` or `:PORT`. Errors: `Invalid`."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 2**16):
        raise Invalid("an address is HOST:PORT, such as 127.0.0.1:8400", got=address)
    return host.strip("[]") or "127.0.0.1", int(port)


def listen_at(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes any. Errors: `Unavailable` when the address is taken, or is not this
    machine's.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return _bound(socket.socket(family, socket.SOCK_STREAM), (host, port))
    except OSError as error:
        raise Unavailable("the server cannot listen there", address=address, cause=str(error)) from error


def listen_at_path(path: Path) -> socket.socket:
    """A Unix socket for this user alone. What a process that was killed has left there is replaced. Errors:
    `Unavailable` when somebody answers there, or the path cannot be used.
    """
    try:
        if _is_stale(path):
            path.unlink()
        # The umask and no `chmod` behind it: in between, other users could connect.
        mask = os.umask(0o177)
        try:
            return _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), str(path))
        finally:
            os.umask(mask)
    except OSError as error:
        raise Unavailable("the server cannot listen there", address=str(path), cause=str(error)) from error


def forget_unsent(connected: socket.socket) -> None:
    """Have the system reset this connection when it is closed, and give back what it holds for a client that takes
    nothing: it would try for minutes to send it.
    """
    with suppress(OSError, ValueError):  # It is closed.
        # On, with no seconds to linger: closing sends a reset.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _is_stale(path: Path) -> bool:
    """True for a socket that nobody listens at."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # A full backlog is a live process, and is not waited for.
            probe.connect(str(path))
    except ConnectionRefusedError:
        return True
    except (FileNotFoundError, BlockingIOError):
        return False
    return False


def _bound(made: socket.socket, address: Any) -> socket.socket:
    try:
        # For a restart, which finds connections of the last process in TIME_WAIT.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def url_of(listening: socket.socket) -> str:
    """The address of the socket: a URL, or `unix:` and a path."""
    name: Any = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}/"
