"""How the owner of sessions shows that it is alive, where the leases themselves are objects.

On one machine by a lock that the system drops with the process; across machines by the time of its last proof.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import anyio

from repertory.backends.folders import make_folders, refuse_link
from repertory.backends.sessions.owner_lock import OwnerLock
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import check_id
from repertory.errors import Invalid, StoreFailed, StoreUnavailable

_LOOKED_AT = 10
"""For how many times its life a proof that somebody looked at is remembered."""


class ProofOfLife(Protocol):
    """What a store asks of it. `owner` is the name that leases have; times are epoch seconds."""

    async def begin(self) -> None:
        """Be alive from now on. Calling it twice is allowed."""
        ...

    async def alive(self, owner: str, proved_at: float) -> bool:
        """Whether another owner, who proved its lease at that time, is alive now."""
        ...

    async def ask(self, owner: str, session_id: str) -> bool:
        """Ask another owner for a session; False where that has to be said in the lease itself."""
        ...

    async def asked_for(self) -> Sequence[str]:
        """The sessions that others have asked for since the last look. Errors: `Unavailable`."""
        ...

    async def end(self) -> bool:
        """Be alive no longer; whether that alone gives every lease up."""
        ...


class TimeToLive:
    """Alive for some seconds after each proof. A clock that is behind the owner's, or jumps back, makes nobody wait
    longer than that: a proof that stays the same while it is looked at for so many seconds counts no longer. One that
    is ahead makes the wait shorter, and nothing worse: what an owner writes is decided by the lease alone.
    """

    def __init__(self, wall: Callable[[], float], ttl_s: float) -> None:
        self._wall = wall
        self._ttl_s = ttl_s
        self._seen: dict[tuple[str, float], float] = {}
        """Owner and proof to when it was looked at first, by a clock that does not jump."""

    async def begin(self) -> None:
        return

    async def alive(self, owner: str, proved_at: float) -> bool:
        return self.counts(owner, proved_at)

    def counts(self, owner: str, proved_at: float) -> bool:
        """Whether an owner is alive whose last proof is of that time."""
        if self._wall() - proved_at >= self._ttl_s:
            return False
        now = anyio.current_time()
        self._seen = {proof: since for proof, since in self._seen.items() if now - since < _LOOKED_AT * self._ttl_s}
        return now - self._seen.setdefault((owner, proved_at), now) < self._ttl_s

    async def ask(self, owner: str, session_id: str) -> bool:
        del owner, session_id
        return False

    async def asked_for(self) -> Sequence[str]:
        return ()

    async def end(self) -> bool:
        return False


class LockedFile:
    """Alive as long as the process holds the lock on a file of its own, in a folder beside the sessions."""

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._lock = OwnerLock(folder, check_id(owner, "owner"))
        self._beginning = anyio.Lock()

    @property
    def begun(self) -> bool:
        """Whether others see this owner alive."""
        return self._lock.held

    async def begin(self) -> None:
        """Errors: `Unavailable` when the folder cannot be made or locked."""
        async with self._beginning:
            if not self._lock.held:
                await run_in_thread(self._begin)

    async def alive(self, owner: str, proved_at: float) -> bool:
        del proved_at
        return await run_in_thread(lambda: self._alive(owner))

    async def ask(self, owner: str, session_id: str) -> bool:
        await run_in_thread(lambda: self._lock.ask(owner, session_id))
        return True

    async def asked_for(self) -> Sequence[str]:
        return await run_in_thread(self._asked_for) if self._lock.held else ()

    async def end(self) -> bool:
        if self._lock.held:
            await run_in_thread(self._lock.release)
        return True

    def _begin(self) -> None:
        try:
            refuse_link(self._folder.parent)
            make_folders(self._folder.parent)
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

    def _asked_for(self) -> Sequence[str]:
        try:
            return self._lock.asked_for()
        except OSError as error:
            cause = error.strerror or str(error)
            raise StoreUnavailable("nobody can be heard", path=str(self._folder), cause=cause) from error

    def _alive(self, owner: str) -> bool:
        try:
            return self._lock.alive(owner)
        except OSError as error:
            cause = error.strerror or str(error)
            raise StoreUnavailable(
                "nobody can tell whether an owner lives", path=os.fspath(self._folder), cause=cause
            ) from error
