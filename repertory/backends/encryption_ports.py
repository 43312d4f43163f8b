"""The port to the keys of sessions, and the methods that an encrypting session store adds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from repertory.core.journal.sealing import Seal


class Sealing(Struct, frozen=True, kw_only=True):
    """The part of a session store that encrypts. Errors of every call: `KeyErased`, `KeyMissing`, `Unavailable`."""

    seal: Callable[[str], Awaitable[Seal]]
    """`await seal(session_id)`: the seal of the rows that are made for the session. Ask for it when the session is
    owned, before the first row is made.
    """
    rotate_key: Callable[[str], Awaitable[str]]
    """`await rotate_key(session_id)`: give the session another key, for all rows from now on, and return its id. The
    caller owns the session.
    """
    erase_key: Callable[[str], Awaitable[None]]
    """`await erase_key(session_id)`: erase every key of the session for good. The caller owns the session. Again
    changes nothing. Also raises `Invalid` for a session that has rows in plain text.
    """


class KeyRing(Struct, frozen=True, kw_only=True):
    """The keys of one session. Records are sealed with the current one, and opened with the one that they name."""

    session_id: str
    current: bytes
    """The id of a key."""
    keys: Mapping[bytes, bytes]
    """The keys of 32 bytes, by their ids."""
    plain_until: Mapping[str, int] = {}
    """The number of the last row before the session got its first key, by agent. Later rows are sealed."""


class KeyProvider(Protocol):
    """Gives every session its keys. Errors of every method: `Unavailable`, `StoreFailed`; `KeyMissing` where a key is
    there and cannot be unwrapped.
    """

    async def keys_of(self, session_id: str) -> KeyRing | None:
        """The session's keys; None if it never had any. Errors: `KeyErased`."""
        ...

    async def create(self, session_id: str, plain_until: Mapping[str, int]) -> KeyRing:
        """Give a session its first key, or return the keys that another process gave it first. Errors: `KeyErased`."""
        ...

    async def rotate(self, session_id: str) -> KeyRing:
        """Add a key, which is the current one from now on. Errors: `KeyErased`, `KeyMissing` for a session without."""
        ...

    async def erase(self, session_id: str) -> None:
        """Destroy the keys, and remember that. Again changes nothing."""
        ...

    async def forget(self, session_id: str) -> None:
        """Destroy the keys and everything about them: the id may be used for a new session."""
        ...

    async def erased(self, session_ids: Collection[str]) -> Collection[str]:
        """The sessions among these whose keys were erased."""
        ...

    async def aclose(self) -> None: ...
