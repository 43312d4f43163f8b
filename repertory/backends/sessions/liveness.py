"""Signs of life of the owners of sessions, where leases are stored as objects.

On one machine: a file lock that the system drops with the process. Across machines: the time of its last proof.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import anyio

from repertory.backends.folders import close_locked, make_root, refuse_link
from repertory.backends.ports import UntilFree, by_the_clock
from repertory.backends.sessions.asking import Bells, Requests, clear_bells, leave_request
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import check_id
from repertory.errors import Invalid, StoreFailed, StoreUnavailable
from repertory.forking import forget_in_children, unforked

T = TypeVar("T")

_LOOKED_AT = 10
"""Lease lifetimes for which a checked proof is remembered."""


LEASE_S = 10.0
"""Seconds that a lease lives after its owner's last proof, where only time can tell."""


class Liveness(Protocol):
    """Owners as a store needs to know them, and as they ask each other for sessions. `owner` is the name in a lease;
    times are epoch seconds. The defaults are those of owners that have no way but the store.
    """

    renew_every_s: float | None = None
    """Seconds after which an owner that writes nothing must renew its leases; None: never."""

    async def is_alive(
        self, owner: str, proved_at: float, silent_s: Callable[[], Awaitable[float]] | None = None
    ) -> bool:
        """True if another owner, whose last proof has that time, is alive now. `silent_s` returns the age of the proof
        by the store's own clock, for callers that can ask for it; without it, `proved_at` decides.
        """
        ...

    async def begin(self) -> None:
        """Count as alive from now on. Calling it twice is allowed. Errors: `Unavailable`, `Invalid`."""

    async def end(self) -> None:
        """Stop counting as alive. Calling it twice is allowed. Elsewhere leases expire."""

    def abandon(self) -> None:
        """`end` where that needs no event loop."""

    async def ask(self, owner: str, session_id: str) -> None:
        """Ask another owner for a session, where that is not stored with the session."""

    async def asked_for(self) -> Sequence[str]:
        """The sessions that other owners have asked for since the last call. Errors: `Unavailable`."""
        return ()

    def freed(self, session_id: str) -> None:
        """Tell those that wait for a session that this owner has just released it: a few system calls, and only if
        anybody waits.
        """

    async def listen(self, asked: Callable[[], None]) -> None:
        """Call `asked` for each request, until cancelled: `StoreSharing.listen`."""

    def waiting(self, session_id: str) -> AbstractAsyncContextManager[UntilFree]:
        """A wait for a session of another owner: `StoreSharing.waiting`."""
        del session_id
        return by_the_clock()


class TimeToLive(Liveness):
    """An owner is alive for `ttl_s` seconds after each proof. If the local clock is behind the owner's, or jumps back,
    a caller still waits no longer than that: a proof that stays the same for `ttl_s` seconds of looking at it has
    expired. If the clock is ahead, the wait is shorter, which is harmless: the lease alone decides what an owner may
    write.
    """

    def __init__(self, wall: Callable[[], float], ttl_s: float = LEASE_S) -> None:
        self._wall = wall
        self._ttl_s = ttl_s
        self.renew_every_s = ttl_s / 4
        self._seen: dict[tuple[str, float], float] = {}
        """Owner and proof to the monotonic time at which it was first seen."""

    async def is_alive(
        self, owner: str, proved_at: float, silent_s: Callable[[], Awaitable[float]] | None = None
    ) -> bool:
        return self.counts(owner, proved_at) if silent_s is None else await silent_s() <= self._ttl_s

    def counts(self, owner: str, proved_at: float) -> bool:
        """True if an owner whose last proof has that time is alive."""
        if self._wall() - proved_at >= self._ttl_s:
            return False
        # Two clocks: the wall clock compares with the owner's, the monotonic one notices when either of them stands or
        # jumps.
        now = anyio.current_time()
        # O(n) for each look, over the owners that were looked at within ten lifetimes.
        self._seen = {proof: since for proof, since in self._seen.items() if now - since < _LOOKED_AT * self._ttl_s}
        return now - self._seen.setdefault((owner, proved_at), now) < self._ttl_s


class LockedFile(Liveness):
    """Alive while the process holds the lock on its own file, in a folder beside the sessions."""

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._lock = OwnerLock(folder, check_id(owner, "owner"))
        self._bells = Bells(folder, owner)
        self._beginning = anyio.Lock()

    async def begin(self) -> None:
        """Errors: `Unavailable` when the folder cannot be made or locked."""
        # Sessions may be opened side by side by the first calls of a process, and the lock is taken once.
        async with self._beginning:
            if not self._lock.held:
                await run_in_thread(self._begin)

    async def is_alive(
        self, owner: str, proved_at: float, silent_s: Callable[[], Awaitable[float]] | None = None
    ) -> bool:
        del proved_at, silent_s
        text = "it cannot be determined whether an owner is alive"
        return await self._in_thread(lambda: self._lock.alive(owner), text)

    async def ask(self, owner: str, session_id: str) -> None:
        await run_in_thread(lambda: self._lock.ask(owner, session_id))

    async def asked_for(self) -> Sequence[str]:
        text = "requests of other processes cannot be read"
        return await self._in_thread(self._lock.asked_for, text) if self._lock.held else ()

    def freed(self, session_id: str) -> None:
        self._lock.freed(session_id)

    async def listen(self, asked: Callable[[], None]) -> None:
        await self._bells.listen(asked)

    def waiting(self, session_id: str) -> AbstractAsyncContextManager[UntilFree]:
        return self._bells.waiting(session_id)

    async def end(self) -> None:
        if self._lock.held:
            await run_in_thread(self._lock.release)

    def abandon(self) -> None:
        self._lock.release()

    def _begin(self) -> None:
        try:
            # A link planted beside the sessions would have us create and remove files in another place.
            refuse_link(self._folder.parent)
            make_root(self._folder.parent)
            refuse_link(self._folder)
            self._lock.acquire()
        except OSError as error:
            where = {"path": str(self._folder.parent), "cause": error.strerror or str(error)}
            if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG):
                text = "sessions are kept in a folder, and something else is there: name another"
                raise Invalid(text, **where) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT):
                raise StoreFailed(
                    "no right to keep sessions there: name a folder that you may write", **where
                ) from error
            raise StoreUnavailable("the folder of sessions cannot be used now", **where) from error

    async def _in_thread(self, work: Callable[[], T], text: str) -> T:
        try:
            return await run_in_thread(work)
        except OSError as error:
            raise StoreUnavailable(text, path=str(self._folder), cause=error.strerror or str(error)) from error


# Liveness between processes of one machine.
#
# Each store holds an exclusive lock on a file of its own, in a folder beside the database. The system lets the lock go
# when the process ends, however it ends, so anyone who can lock the file knows that its owner is dead: no heartbeat, no
# time to live. Those who test take shared locks, so two of them never mistake each other for the owner. A forked child
# closes what it has inherited of its parent's lock: else the parent would seem alive for as long as the child is.
#
# A process that wants an owner's session writes its name into the owner's file: see `asking.py`.
#
# The file begins with two lines: the owner's process, and the last position that it has committed, where it notes that.
# The note is written after the commit has been synced, and is not synced itself: it outlives its process, and never
# says more than what was acknowledged. So the process that opens the database after a kill notices missing commits.

_DIGITS = 20


class OwnerLock:
    """The lock of one owner, held from `acquire` to `release`."""

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._path = folder / check_id(owner, "owner")
        self._file: int | None = None
        self._noted_at = 0
        """The place of the position in the file, behind the line of this process."""
        self._requests: Requests | None = None
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Drop the lock in a forked child. The parent keeps it through its own descriptor."""
        # flock belongs to the open file, which parent and child share: the parent's lock lasts until both have closed
        # it.
        file, self._file, self._requests = self._file, None, None
        if file is not None:
            os.close(file)

    @property
    def held(self) -> bool:
        """True if other processes see this owner as alive."""
        return self._file is not None

    def acquire(self) -> None:
        """Take the lock, and remove the files of dead owners. Errors: `Unavailable`; `Invalid` when the owner's name is
        in use.
        """
        if self._file is None:
            with suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
            with unforked:
                # A fork between opening and remembering the descriptor would leave a child that keeps the lock without
                # knowing.
                self._file = _lock_own(self._path)
            self._noted_at = len(_pid_line())
            self._requests = Requests(self._folder, self._file)
            for path in [self._folder / name for name in os.listdir(self._folder)]:
                if path != self._path:
                    _alive(path)  # Removes the file of a dead owner.
            clear_bells(self._folder, lambda owner: owner == self._path.name or self.alive(owner))

    def release(self) -> None:
        """Give up the lock, and every session with it."""
        requests, self._requests = self._requests, None
        # The last requests are read while the file is open, and answered when the sessions are free: see `ring()`
        # below.
        ring = requests.close() if requests is not None else None
        with unforked:
            if self._file is not None:
                with suppress(OSError):
                    self._path.unlink()
                close_locked(self._file)
                self._file = None
        if ring is not None:
            ring()

    def alive(self, owner: str) -> bool:
        """True if another owner is alive now. An impossible owner name, which damage may leave, counts as dead."""
        try:
            return _alive(self._folder / check_id(owner, "owner"))
        except Invalid:
            return False

    def ask(self, owner: str, session_id: str) -> None:
        """Ask another owner for a session."""
        leave_request(self._folder, owner, session_id)

    def note(self, position: int) -> None:
        """Record that everything up to this position is committed. If that fails, the position is not recorded."""
        if self._file is not None:
            with suppress(OSError):
                # A fixed width in place: one write of 20 bytes within a page, which a kill leaves whole or untouched.
                os.pwrite(self._file, b"%0*d" % (_DIGITS, position), self._noted_at)

    def asked_for(self) -> list[str]:
        """The sessions that other processes have asked for since the last call. Usually only reads the file's size."""
        requests = self._requests
        return [] if requests is None else requests.take()

    def freed(self, session_id: str) -> None:
        """A session was released: tell those that wait for it. Mostly asks for the size of an open file, no more."""
        requests = self._requests
        # Each release comes by here. Nearly always nobody waits, and then this is one `fstat`.
        if requests is not None and not requests.none():
            with suppress(OSError):
                requests.freed(session_id)


def noted_in(folder: Path) -> int:
    """The highest position that an owner, alive or dead, has noted in the folder; 0 when there is none."""
    highest = 0
    with suppress(OSError):
        for name in os.listdir(folder):
            # Any file may vanish between listing and opening, or be of another program.
            with suppress(OSError, IndexError), open(folder / name, "rb") as file:
                noted = file.read(1024).split(b"\n")[1]
                highest = max(highest, int(noted) if len(noted) == _DIGITS and noted.isdigit() else 0)
    return highest


def _lock_own(path: Path) -> int:
    """A new locked file at `path`. It gets its name only when locked, so no process ever sees a live owner's file
    unlocked.
    """
    if _alive(path):
        raise Invalid("another store is using this owner's name", owner=path.name)
    # Opening and locking are two calls. Under its final name, somebody could test and remove the file in between.
    unnamed = path.with_name(f".{path.name}")
    while True:
        file = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if _lock(file, shared=False):
                os.write(file, b"%b%0*d\n" % (_pid_line(), _DIGITS, 0))
                unnamed.rename(path)
                return file
        except FileNotFoundError:
            pass  # Another process removed the file before the rename.
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _pid_line() -> bytes:
    return b"%d\n" % os.getpid()


def _alive(path: Path) -> bool:
    """True if a process holds the file locked. A file that is not locked is removed."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two processes that test at once do not take each other for the owner.
        if not _lock(file, shared=True):
            return True
        with suppress(FileNotFoundError):
            # Owner ids are random and never used twice, so no living owner's file can have this name by now.
            path.unlink()
        return False
    finally:
        close_locked(file)


def _lock(file: int, *, shared: bool) -> bool:
    try:
        # Here and not above: the package can be imported where there is no fcntl, as on Windows, for stores without
        # locks.
        import fcntl
    except ImportError as error:
        raise StoreUnavailable("owning a session needs POSIX file locks, which this system lacks") from error
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
