"""Whether the owner of a session is alive: by a lock on one machine, by signs of life across machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from repertory.backends.ports import Overwrite
from repertory.backends.sessions.journal.keys import SessionKeys
from repertory.backends.sessions.journal.requests import Requests
from repertory.backends.sessions.proof_of_life import LockedFile
from repertory.core.ids import check_id
from repertory.errors import Invalid

LEASE_S = 10.0
"""Seconds that a lease lives after the last sign of its owner."""


class Owners(Protocol):
    """How owners prove that they are alive, and how others see it."""

    @property
    def renew_every_s(self) -> float | None:
        """How often an owner that writes nothing gives a sign of life; None when it need not."""
        ...

    async def arrive(self) -> None:
        """Become alive, before anything is owned. Calling it again is allowed. Errors: `Unavailable`, `Invalid`."""
        ...

    async def leave(self) -> None:
        """Own nothing any more. Calling it again is allowed."""
        ...

    async def alive(self, owner: str, keys: SessionKeys, requests: Requests) -> bool:
        """Whether the owner of a session is alive now. Errors: the object store's."""
        ...

    async def seems_alive(self, owner: str, last_sign_at: float) -> bool:
        """The same for a listing, without asking the object store. `last_sign_at`: epoch seconds by its clock."""
        ...

    async def ask(self, owner: str, session_id: str) -> None:
        """Ask the owner of a session, which was seen alive, to give it up."""
        ...

    async def asked_for(self) -> Sequence[str]:
        """The sessions that this owner was asked for since the last look, without asking the object store."""
        ...

    async def asked_now(self, owner: str, keys: SessionKeys, requests: Requests) -> bool:
        """Whether this owner is asked for a session that it has just renewed. Errors: the object store's."""
        ...


class TimedOwners:
    """An owner is alive for `lease_s` after it last wrote to the session, both by the object store's clock.

    What time it is there is found out by writing a small object, so no machine's clock counts but the store's.
    """

    def __init__(self, *, lease_s: float = LEASE_S, wall: Callable[[], float]) -> None:
        """`wall` gives epoch seconds; listings go by it, and nothing else."""
        self._lease_s = lease_s
        self._wall = wall

    @property
    def renew_every_s(self) -> float | None:
        return self._lease_s / 4

    async def arrive(self) -> None:
        """Writing to a session is being alive."""

    async def leave(self) -> None:
        """Not writing any more is enough."""

    async def alive(self, owner: str, keys: SessionKeys, requests: Requests) -> bool:
        await requests.put(keys.wanted, owner.encode(), Overwrite())
        now = newest = float("-inf")
        for info in await requests.list(f"{keys.folder}/", f"{keys.folder}/d"):
            if info.key == keys.wanted:
                now = info.modified_at
            elif info.key == keys.head or info.key.startswith(keys.segments):
                newest = max(newest, info.modified_at)
        return now - newest <= self._lease_s

    async def ask(self, owner: str, session_id: str) -> None:
        """Seeing whether it lives has left the object that the owner looks for."""

    async def asked_for(self) -> Sequence[str]:
        return ()

    async def asked_now(self, owner: str, keys: SessionKeys, requests: Requests) -> bool:
        found = await requests.find(keys.wanted)
        if found is None or found.body != owner.encode():
            return False
        await requests.delete_all([keys.wanted])
        return True

    async def seems_alive(self, owner: str, last_sign_at: float) -> bool:
        del owner
        return self._wall() - last_sign_at <= self._lease_s


class LockedOwners:
    """An owner is alive as long as its process holds a lock on a file: for stores on one machine.

    The system drops the lock with the process, so a session is free at once when its owner is killed.
    """

    def __init__(self, folder: Path, owner: str) -> None:
        """`folder` is for the owners' files alone; it is made when it is missing, with mode 0700."""
        self._life = LockedFile(folder, owner)
        self._owner = owner

    @property
    def renew_every_s(self) -> float | None:
        return None

    async def arrive(self) -> None:
        await self._life.begin()

    async def leave(self) -> None:
        await self._life.end()

    async def alive(self, owner: str, keys: SessionKeys, requests: Requests) -> bool:
        del keys, requests
        return await self._holds(owner)

    async def seems_alive(self, owner: str, last_sign_at: float) -> bool:
        del last_sign_at
        return (owner == self._owner and self._life.begun) or await self._holds(owner)

    async def ask(self, owner: str, session_id: str) -> None:
        await self._life.ask(owner, session_id)

    async def asked_for(self) -> Sequence[str]:
        return await self._life.asked_for()

    async def asked_now(self, owner: str, keys: SessionKeys, requests: Requests) -> bool:
        del owner, keys, requests
        return False

    async def _holds(self, owner: str) -> bool:
        """An owner is whatever a head says: only what may be a file's name is looked for."""
        with suppress(Invalid):
            check_id(owner, "owner")
            return owner != self._owner and await self._life.alive(owner, 0.0)
        return False
