"""What encryption asks of a place of keys, and what a session store adds that encrypts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.sealing import Seal


class Sealing(Protocol):
    """The keys of the sessions of a store. The defaults are those of a store that keeps plain text."""

    async def seal(self, session_id: str) -> Seal | None:
        """Encrypts the rows that are made for the session; None: they are stored as they are. Ask for it when the
        session is owned, before the first row is made. Errors: `KeyErased`, `KeyMissing`, `Unavailable`.
        """
        del session_id
        return None

    async def rotate_key(self, session_id: str) -> str:
        """Give the session another key, for all rows from now on, and return its id. The caller owns the session.
        Errors: `Invalid` for a store without encryption; `KeyErased`, `KeyMissing`, `Unavailable`.
        """
        raise _not_encrypted(session_id)

    async def erase_key(self, session_id: str) -> None:
        """Erase every key of the session for good. The caller owns the session. Again changes nothing. Errors:
        `Invalid` for a store without encryption, and for a session that has rows in plain text; `Unavailable`.
        """
        raise _not_encrypted(session_id)


def _not_encrypted(session_id: str) -> Invalid:
    return Invalid("this place is not encrypted: open it with encryption=LocalKeys(...)", session=session_id)


class KeyRing(Struct, frozen=True, kw_only=True):
    """The keys of one session. Records are sealed with the current one, and opened with the one that they name."""

    session_id: str
    current: bytes
    """The id of a key."""
    keys: Mapping[bytes, bytes]
    """Key id to key, of 32 bytes."""
    plain_until: Mapping[str, int] = {}
    """By agent: the last row that was there when the session got its first key. Later ones are sealed."""


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
        """Those of the sessions whose keys were erased."""
        ...

    async def aclose(self) -> None: ...
