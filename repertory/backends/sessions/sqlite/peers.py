"""The runtimes of one machine that share a session database: a file of JSON for each, in a folder beside the database.

A file counts as long as the store's owner of that name is alive. Nothing is synced: what a power cut destroys has ended
its runtime as well.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from repertory.backends.folders import make_folders
from repertory.backends.peer_ports import Peer
from repertory.backends.sessions.liveness import OwnerLock
from repertory.backends.sessions.sqlite.file import peers_folder
from repertory.errors import Invalid

_TMP = "/tmp"  # nosec B108
"""The folder in it is for this user alone."""
SOCKET_BYTES_MAX = 100
"""So long may a Unix socket's path be, a little less than on the systems that allow the least."""
_FILE, _NEW = ".json", ".new"
_FILE_BYTES_MAX = 64 * 1024


def socket_path(database: str | os.PathLike[str], owner: str) -> str:
    """The path of the Unix socket at which the peer of this name listens, if it has no other address. It has less than
    `SOCKET_BYTES_MAX` bytes, and may be there already. It lies in the folder of the database's peers, or, where that
    name is too long, in one under `$XDG_RUNTIME_DIR` or the system's folder for temporary files. The folder is made if
    needed, for its user alone. Blocking.

    Errors: `Invalid` when the folder is somebody else's; `OSError` when it cannot be made.
    """
    path = _socket(Path(database).absolute(), owner)
    make_folders(path.parent)
    found = os.lstat(path.parent)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        text = "the folder of sockets must be a folder that its user alone may use: remove it, or change its mode"
        raise Invalid(text, path=str(path.parent))
    return str(path)


def _socket(database: Path, owner: str) -> Path:
    name = f"{_digest(owner)}.sock"
    beside = peers_folder(database) / name
    if len(os.fsencode(beside)) < SOCKET_BYTES_MAX:
        return beside
    folder = f"repertory-{os.geteuid()}-{_digest(os.fspath(database))}"
    roots = os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), _TMP
    places = [Path(root) / folder / name for root in roots if os.path.isdir(root)]
    return next((path for path in places if len(os.fsencode(path)) < SOCKET_BYTES_MAX), beside)


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]


class PeerFiles:
    """The files as one owner sees them, whose lock is given. Blocking. Errors: those of the file system."""

    def __init__(self, database: Path, owner: str) -> None:
        self._database = database
        self._folder = peers_folder(database)
        self._own = self._folder / f"{owner}{_FILE}"

    def join(self, peer: Peer, lock: OwnerLock) -> None:
        """List this owner, which is alive from now on. Another process reads the old words or the new ones."""
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        lock.acquire()
        unnamed = self._own.with_name(f"{self._own.name}{_NEW}")
        file = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(file, "wb") as opened:
            opened.write(msgspec.json.encode(peer))
        os.replace(unnamed, self._own)

    def leave(self) -> None:
        """List it no longer."""
        self._own.unlink(missing_ok=True)

    def living(self, lock: OwnerLock) -> list[Peer]:
        """The peers that are alive, in the order of their names. The files of dead ones are removed."""
        found: list[Peer] = []
        names = sorted(os.listdir(self._folder)) if self._folder.is_dir() else []
        for name in names:
            owner = name.removesuffix(_FILE)
            if owner == name:
                continue
            file = self._folder / name
            if file != self._own and not lock.alive(owner):
                self._forget(owner)
            elif file != self._own or lock.held:
                # It has just left, or is of another release.
                with suppress(FileNotFoundError, msgspec.MsgspecError), file.open("rb") as opened:
                    found.append(msgspec.json.decode(opened.read(_FILE_BYTES_MAX), type=Peer))
        return sorted(found, key=lambda peer: peer.name)

    def _forget(self, owner: str) -> None:
        files = (self._folder / f"{owner}{ending}" for ending in (_FILE, f"{_FILE}{_NEW}"))
        for file in (*files, _socket(self._database, owner)):
            with suppress(OSError):
                file.unlink(missing_ok=True)
