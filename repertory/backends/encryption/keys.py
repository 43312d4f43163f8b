"""Where the keys of sessions are kept: one document per session, away from the sessions, in a storage of objects.

    keys/<sha256 of the session id>     the keys, or that they were erased
    erased/<the same>                   an empty marker, for listings

A document is replaced as a whole, under a condition, so of two processes that make the first key of a session one wins
and both use it. Erasing replaces the document by one that says so: that is one write, and nothing of the key is left.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.encryption.ports import KeyProvider, KeyRing
from repertory.backends.encryption.row_cipher import key_missing
from repertory.backends.encryption.wrapping import KeyWrap, WrappedKey
from repertory.backends.ports import Create, ObjectStore, Overwrite, Update
from repertory.core.journal.sealing import KEY_ID_BYTES
from repertory.errors import AlreadyExists, Corrupt, Invalid, KeyErased, NotFound, PreconditionFailed

FORMAT = 1
KEY_BYTES = 32
_UNWRAPPED_MAX = 4096
"""Unwrapped keys that are remembered, so that a service is asked once for each."""


class StoredKey(Struct, kw_only=True):
    """One key, as its document has it."""

    id: str
    at: float
    wrap: str
    key: str


class KeyDocument(Struct, kw_only=True, omit_defaults=True):
    """The document of one session."""

    repertory_keys: int
    session: str
    keys: list[StoredKey] = []
    """The last one is the current one."""
    plain_until: dict[str, int] = {}
    erased_at: float | None = None


class _Found(Struct):
    document: KeyDocument
    version: str


class StoredKeys(KeyProvider):
    """A `KeyProvider` over a storage of objects."""

    def __init__(
        self, objects: ObjectStore, wrap: KeyWrap, *, wall: Callable[[], float], entropy: Callable[[int], bytes]
    ) -> None:
        self._objects = objects
        self._wrap = wrap
        self._wall = wall
        self._entropy = entropy
        self._unwrapped: dict[str, bytes] = {}

    async def keys_of(self, session_id: str) -> KeyRing | None:
        found = await self._read(session_id)
        return None if found is None else await self._unwrap(found.document)

    async def create(self, session_id: str, plain_until: Mapping[str, int]) -> KeyRing:
        key = await self._new(session_id)
        document = KeyDocument(repertory_keys=FORMAT, session=session_id, keys=[key], plain_until={**plain_until})
        try:
            await self._objects.put(_key(session_id), msgspec.json.encode(document), Create())
        except AlreadyExists:
            found = await self.keys_of(session_id)
            if found is None:  # It was forgotten at the same moment.
                return await self.create(session_id, plain_until)
            return found
        return await self._unwrap(document)

    async def rotate(self, session_id: str) -> KeyRing:
        key = await self._new(session_id)

        def with_key(document: KeyDocument) -> KeyDocument:
            _check_erased(document)
            return replace(document, keys=[*document.keys, key])

        document = await self._change(session_id, with_key)
        if document is None:
            raise key_missing(session_id, None)
        return await self._unwrap(document)

    async def erase(self, session_id: str) -> None:
        gone = KeyDocument(repertory_keys=FORMAT, session=session_id, erased_at=self._wall())
        found = await self._change(session_id, lambda known: known if known.erased_at is not None else gone)
        if found is None:
            try:
                await self._objects.put(_key(session_id), msgspec.json.encode(gone), Create())
            except AlreadyExists:
                return await self.erase(session_id)
        self._unwrapped.clear()
        await self._objects.put(_marker(session_id), b"", Overwrite())
        return None

    async def forget(self, session_id: str) -> None:
        self._unwrapped.clear()
        await self._objects.delete(_key(session_id))
        await self._objects.delete(_marker(session_id))

    async def erased(self, session_ids: Collection[str]) -> Collection[str]:
        if len(session_ids) == 1:
            (session_id,) = session_ids
            try:
                await self._objects.get(_marker(session_id))
            except NotFound:
                return ()
            return session_ids
        marked = {info.key for info in await self._objects.list("erased/")}
        return {session_id for session_id in session_ids if _marker(session_id) in marked} if marked else ()

    async def rewrap(self) -> int:
        """Wrap every key that is not wrapped with the newest master key anew. Returns the number of sessions that were
        changed. Cut off, it goes on at the next call.
        """
        changed = 0
        async with aclosing(self._documents()) as documents:
            async for found in documents:
                stale = [key for key in found.document.keys if key.wrap != self._wrap.name]
                if stale:
                    changed += await self._rewrapped(found.document.session)
        return changed

    async def aclose(self) -> None:
        self._unwrapped.clear()
        await self._wrap.aclose()
        await self._objects.aclose()

    async def _documents(self) -> AsyncGenerator[_Found]:
        for info in await self._objects.list("keys/"):
            found = await self._at(info.key, None)
            if found is not None:
                yield found

    async def _rewrapped(self, session_id: str) -> bool:
        """Another process may rotate or erase the key at the same time: then the newer document is taken."""
        while (found := await self._at(_key(session_id), session_id)) is not None:
            keys = [await self._wrapped_anew(session_id, key) for key in found.document.keys]
            document = replace(found.document, keys=keys)
            try:
                await self._objects.put(_key(session_id), msgspec.json.encode(document), Update(found.version))
            except PreconditionFailed:
                continue
            return True
        return False

    async def _wrapped_anew(self, session_id: str, key: StoredKey) -> StoredKey:
        if key.wrap == self._wrap.name:
            return key
        wrapped = await self._wrap.wrap(session_id, await self._key(session_id, key))
        return replace(key, wrap=wrapped.wrap, key=base64.b64encode(wrapped.key).decode())

    async def _new(self, session_id: str) -> StoredKey:
        material, key_id = self._entropy(KEY_BYTES), self._entropy(KEY_ID_BYTES).hex()
        wrapped = await self._wrap.wrap(session_id, material)
        spelled = base64.b64encode(wrapped.key).decode()
        return StoredKey(id=key_id, at=self._wall(), wrap=wrapped.wrap, key=spelled)

    async def _unwrap(self, document: KeyDocument) -> KeyRing:
        _check_erased(document)
        try:
            keys = {bytes.fromhex(key.id): await self._key(document.session, key) for key in document.keys}
        except ValueError as error:  # An id or a key that is not spelled as one.
            if isinstance(error, Invalid):
                raise
            raise _malformed(document.session) from error
        if not keys or any(len(each) != KEY_BYTES for each in keys.values()):
            raise _malformed(document.session)
        current = bytes.fromhex(document.keys[-1].id)
        return KeyRing(session_id=document.session, current=current, keys=keys, plain_until=document.plain_until)

    async def _key(self, session_id: str, stored: StoredKey) -> bytes:
        name = f"{session_id}\0{stored.wrap}\0{stored.key}"
        material = self._unwrapped.get(name)
        if material is None:
            wrapped = WrappedKey(wrap=stored.wrap, key=base64.b64decode(stored.key))
            material = await self._wrap.unwrap(session_id, wrapped)
            if len(self._unwrapped) >= _UNWRAPPED_MAX:
                self._unwrapped.clear()
            self._unwrapped[name] = material
        return material

    async def _change(self, session_id: str, change: Callable[[KeyDocument], KeyDocument]) -> KeyDocument | None:
        """The changed document; None if there is none."""
        while (found := await self._at(_key(session_id), session_id)) is not None:
            document = change(found.document)
            if document is found.document:
                return document
            try:
                await self._objects.put(_key(session_id), msgspec.json.encode(document), Update(found.version))
            except PreconditionFailed:
                continue
            return document
        return None

    async def _read(self, session_id: str) -> _Found | None:
        return await self._at(_key(session_id), session_id)

    async def _at(self, key: str, session_id: str | None) -> _Found | None:
        """The document under a key. `session_id`: whose it must be."""
        try:
            stored = await self._objects.get(key)
        except NotFound:
            return None
        try:
            document = msgspec.json.decode(stored.body, type=KeyDocument)
        except msgspec.MsgspecError as error:
            raise Corrupt(
                "the document with the keys of a session is malformed", key=key, session=session_id
            ) from error
        if document.repertory_keys != FORMAT:
            raise Invalid("the keys are of a later release", version=document.repertory_keys, known=FORMAT)
        if session_id is not None and document.session != session_id:
            raise _malformed(session_id)
        return _Found(document, stored.version)


def _check_erased(document: KeyDocument) -> None:
    if document.erased_at is not None:
        raise KeyErased("the key of the session was erased: nobody can read it", session=document.session)


def _malformed(session_id: str) -> Corrupt:
    return Corrupt("the document with the keys of a session is malformed", session=session_id)


def _key(session_id: str) -> str:
    return f"keys/{_name(session_id)}"


def _marker(session_id: str) -> str:
    return f"erased/{_name(session_id)}"


def _name(session_id: str) -> str:
    return sha256(session_id.encode()).hexdigest()
