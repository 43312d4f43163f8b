"""Addresses of peers: how they are written, and listening at them."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream
from msgspec import Struct

from repertory.backends.folders import close_locked, make_folders
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Invalid, Unavailable

FORMS: Final = "an address of a peer is host:port, [v6]:port or unix:/path"
UNIX_PATH_MAX: Final = 107
"""The bytes of the longest path of a Unix socket that Linux takes."""
BACKLOG: Final = 1024
_PORT_MAX: Final = 65535
_UNIX: Final = "unix:"
_CREDENTIALS: Final = struct.Struct("3i")
"""The process, user and group of the other side of a Unix socket."""


class PeerAddress(Struct, frozen=True, kw_only=True):
    """A parsed address: of a Unix socket if `path` is set, else of TCP."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def ip(self) -> IPv4Address | IPv6Address | None:
        """The IP address; None if the host is a name."""
        try:
            return ip_address(self.host.partition("%")[0])
        except ValueError:
            return None

    async def connect(self) -> SocketStream:
        """Connect to the address. Errors: `OSError`, `UnicodeError`."""
        if self.path:
            stream = await steady_stream(await anyio.connect_unix(self.path))
            if not is_of_this_user(stream):
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
                raise PermissionError("another user listens at this Unix socket")
            return stream
        return await anyio.connect_tcp(self.host, self.port)


async def steady_stream(stream: SocketStream) -> SocketStream:
    """A stream whose `receive` may be cancelled at any moment. On asyncio, one of a Unix socket that anyio makes leaves
    a failing callback on the loop when that happens as data comes, so it is made anew as one of the loop's own.

    Errors: `OSError` when the other side has gone.
    """
    raw = stream.extra(SocketAttribute.raw_socket)
    if raw.family is not socket.AF_UNIX:
        return stream
    try:
        # A copy of the descriptor, since closing the first stream closes its own.
        return await SocketStream.from_socket(os.dup(raw.fileno()))
    except ValueError as error:
        raise ConnectionResetError(str(error)) from error
    finally:
        with anyio.CancelScope(shield=True):
            await stream.aclose()


def is_of_this_user(stream: SocketStream) -> bool:
    """False for a Unix socket whose other side is neither this user's nor root's. True where the system does not tell:
    there, the folder of the socket keeps others out.
    """
    raw = stream.extra(SocketAttribute.raw_socket)
    if not hasattr(socket, "SO_PEERCRED") or raw.family is not socket.AF_UNIX:
        return True
    _, user, _ = _CREDENTIALS.unpack(raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return user in {os.geteuid(), 0}


def peer_address(text: str) -> PeerAddress:
    """The address that a text has. Errors: `Invalid`."""
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path.startswith("/") or "\0" in path:
            raise Invalid(FORMS, got=text)
        if len(os.fsencode(path)) > UNIX_PATH_MAX:
            raise Invalid("the path of a Unix socket is too long", path=path, bytes_max=UNIX_PATH_MAX)
        return PeerAddress(path=path)
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    # Its length comes first: `int` raises a `ValueError` of its own for more than 4,300 digits.
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= len(str(_PORT_MAX)) else _PORT_MAX + 1
    if not colon or not bare or number > _PORT_MAX or bracketed != (":" in bare) or any(c in bare for c in "[]/ \0"):
        raise Invalid(FORMS, got=text)
    address = PeerAddress(host=bare, port=number)
    if bracketed and not isinstance(address.ip, IPv6Address):
        raise Invalid(FORMS, got=text)
    return address


def advertised_address(text: str) -> PeerAddress:
    """The address of TCP in `advertise`, which may leave the port out. Errors: `Invalid`."""
    bare = "" if text.endswith("]") else text.rpartition(":")[1]
    parsed = peer_address(text if bare else f"{text}:0")
    if parsed.path or (parsed.ip is not None and parsed.ip.is_unspecified):
        raise Invalid("advertise is where other machines reach this one: host or host:port", got=text)
    return parsed


@asynccontextmanager
async def listening_at(
    address: PeerAddress, advertise: PeerAddress | None
) -> AsyncGenerator[tuple[Sequence[SocketListener], str]]:
    """Listeners, and the address to tell others. Whoever enters closes the listeners; the file of a Unix socket is
    removed at the end.

    Errors: `Invalid` for an address that cannot be used here; `Unavailable` when it is taken.
    """
    if address.path:
        async with _unix_listener(Path(address.path)) as listener:
            yield [listener], str(address)
        return
    host = await _advertised_host(address) if advertise is None else advertise.host
    try:
        listener = await anyio.create_tcp_listener(local_host=address.host, local_port=address.port, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise Unavailable("somebody else listens at this address", address=str(address)) from error
        raise Invalid(f"cannot listen at this address: {error}", address=str(address)) from error
    port = listener.extra(SocketAttribute.local_port)
    advertised = PeerAddress(host=host, port=port if advertise is None or not advertise.port else advertise.port)
    yield [each for each in listener.listeners if isinstance(each, SocketListener)], str(advertised)


@asynccontextmanager
async def _unix_listener(path: Path) -> AsyncGenerator[SocketListener]:
    file = _UnixSocket(path)
    try:
        try:
            await run_in_thread(file.bind)
        except OSError as error:
            raise Invalid(f"cannot listen at this address: {error}", path=str(path)) from error
        yield await SocketListener.from_socket(file.sock)
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(file.remove)


async def _advertised_host(address: PeerAddress) -> str:
    """The host itself, or for all of this machine, the address that its name has."""
    if address.ip is None or not address.ip.is_unspecified:
        return address.host
    family = socket.AF_INET6 if isinstance(address.ip, IPv6Address) else socket.AF_INET
    with suppress(OSError, UnicodeError):
        for info in await anyio.getaddrinfo(socket.gethostname(), None, family=family, type=socket.SOCK_STREAM):
            found = ip_address(str(info[4][0]).partition("%")[0])
            # Debian gives the name of a machine the address 127.0.1.1.
            if not found.is_loopback and not found.is_link_local:
                return str(found)
    text = "the name of this machine has no address that others could reach: set advertise to one"
    raise Invalid(text, listen=str(address))


# Blocking, and called in a worker thread: a Unix socket is a file.


class _UnixSocket:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._made: tuple[int, int, int] | None = None
        """The identity of the socket's file, which another process may have replaced at the end."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def bind(self) -> None:
        make_folders(self._path.parent)
        there = self._path.parent.stat()
        if there.st_uid != os.geteuid() or stat.S_IMODE(there.st_mode) & 0o077:
            raise Invalid("a Unix socket is in a folder for its user alone (mode 0700)", folder=str(self._path.parent))
        with _locked(self._path.parent):
            _replace_stale(self._path)
            self.sock.bind(str(self._path))
            self._made = file_at(self._path)
            # Before it listens, so nobody can connect by the rights that the umask has given it.
            self._path.chmod(0o600)
            self.sock.listen(BACKLOG)
            self.sock.setblocking(False)

    def remove(self) -> None:
        self.sock.close()
        if self._made is not None:
            remove_file(self._path, self._made)


def file_at(path: Path) -> tuple[int, int, int]:
    """The file at this path, and no later one: the number of an inode alone is given to the next file, too."""
    found = path.lstat()
    return found.st_dev, found.st_ino, found.st_mtime_ns


def remove_file(path: Path, made: tuple[int, int, int]) -> None:
    """Remove this file, unless another one has replaced it."""
    with suppress(FileNotFoundError):
        if file_at(path) == made:
            path.unlink()


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """A lock on the folder, since two processes that start at once must not remove each other's socket as stale."""
    import fcntl  # Not on Windows, where no loop has Unix sockets.

    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        close_locked(descriptor)


def _replace_stale(path: Path) -> None:
    """Remove the socket of a dead process. Errors: `Unavailable` for that of a live one, `Invalid` for another file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Invalid("there is a file at the path of the Unix socket", path=str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # A full backlog is a live process, and is not waited for.
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise Unavailable("another process listens at this Unix socket", path=str(path))
