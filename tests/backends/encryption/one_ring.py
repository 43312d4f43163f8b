"""Keys for tests: one ring for every session, so that rows can be sealed before it is known whose they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from repertory.backends.encryption.row_cipher import RowCipher
from repertory.backends.encryption_ports import KeyProvider, KeyRing

RING = KeyRing(session_id="any", current=b"k" * 8, keys={b"k" * 8: bytes(range(32))})
CIPHER = RowCipher(RING)


class OneRing(KeyProvider):
    """Every session has the same key, and keeps it."""

    async def keys_of(self, session_id: str) -> KeyRing | None:
        del session_id
        return RING

    async def create(self, session_id: str, plain_until: Mapping[str, int]) -> KeyRing:
        del session_id, plain_until
        return RING

    async def rotate(self, session_id: str) -> KeyRing:
        del session_id
        return RING

    async def erase(self, session_id: str) -> None:
        del session_id

    async def forget(self, session_id: str) -> None:
        del session_id

    async def erased(self, session_ids: Collection[str]) -> Collection[str]:
        del session_ids
        return ()

    async def aclose(self) -> None:
        return
