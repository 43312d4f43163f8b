"""The store of sessions' keys: one document per session, away from the sessions, in a storage of objects.

    keys/<sha256 of the session id>     the keys, or that they were erased
    erased/<the same>                   an empty marker, for listings

The keys of a session, their order, and how far the session was plain are sealed as one, for that session, by a key that
seals nothing else; that one is wrapped. So whoever writes to the place alone cannot change, add, swap or unwrap a key:
such a writer can remove a document, put an older one of the same session back, or say that the keys were erased.

A document is replaced as a whole, under a condition, so of two processes that make the first key of a session one wins
and both use it. Erasing replaces the document by one that says so: that is one write, and nothing of the key is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from hashlib import sha256
from typing import TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.encryption.row_cipher import key_missing
from repertory.backends.encryption.wrapping import NOT_WRAPPED, KeyWrap, WrappedKey
from repertory.backends.encryption_ports import KeyProvider, KeyRing
from repertory.backends.ports import Create, ObjectStore, Overwrite, Update
from repertory.core.journal.sealing import KEY_ID_BYTES, NONCE_BYTES
from repertory.errors import AlreadyExists, Corrupt, Invalid, KeyErased, KeyMissing, NotFound, PreconditionFailed

FORMAT = 1
KEY_BYTES = 32
_UNWRAPPED_MAX = 4096
"""Unwrapped keys that are remembered, so that a service is asked once for each."""
_ONCE = bytes(NONCE_BYTES)
"""The nonce of a key that seals one text in its life."""

_Read = TypeVar("_Read")


class StoredKey(Struct, kw_only=True):
    """A key of a session, as it is stored."""

    id: str
    at: float
    key: bytes


class SealedKeys(Struct, kw_only=True, omit_defaults=True):
    """The sealed part of the document of a session."""

    keys: list[StoredKey]
    """The last one is the current one."""
    plain_until: dict[str, int] = {}


class KeyDocument(Struct, kw_only=True, omit_defaults=True):
    """The document of one session."""

    repertory_keys: int
    session: str
    wrap: str = ""
    key: bytes = b""
    """The key that opens `sealed`, wrapped."""
    sealed: bytes = b""
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
        self._unwrapped: dict[tuple[str, str, bytes], bytes] = {}

    async def keys_of(self, session_id: str) -> KeyRing | None:
        found = await self._at(_key(session_id))
        return None if found is None else _ring(session_id, await self._open(found.document))

    async def create(self, session_id: str, plain_until: Mapping[str, int]) -> KeyRing:
        contents = SealedKeys(keys=[self._new()], plain_until={**plain_until})
        document = await self._sealed(session_id, contents)
        try:
            await self._objects.put(_key(session_id), msgspec.json.encode(document), Create())
        except AlreadyExists:
            # Another process has made the first key of this session just now: both must use one.
            found = await self.keys_of(session_id)
            if found is None:  # It was forgotten at the same moment.
                return await self.create(session_id, plain_until)
            return found
        return _ring(session_id, contents)

    async def rotate(self, session_id: str) -> KeyRing:
        key = self._new()

        async def with_key(document: KeyDocument) -> KeyDocument:
            contents = await self._open(document)
            return await self._sealed(session_id, replace(contents, keys=[*contents.keys, key]))

        document = await self._change(_key(session_id), with_key)
        if document is None:
            raise key_missing(session_id, None)
        return _ring(session_id, await self._open(document))

    async def erase(self, session_id: str) -> None:
        gone = KeyDocument(repertory_keys=FORMAT, session=session_id, erased_at=self._wall())

        async def without_keys(known: KeyDocument) -> KeyDocument:
            return known if known.erased_at is not None else gone

        # Without a document a tombstone is put all the same, or a key that is being made now would survive the erasing.
        if await self._change(_key(session_id), without_keys) is None:
            try:
                await self._objects.put(_key(session_id), msgspec.json.encode(gone), Create())
            except AlreadyExists:
                return await self.erase(session_id)
        # All of them, which is simpler than to look for those of the session: it is only a cache.
        self._unwrapped.clear()
        # Last. It only serves listings: the document itself already says that the keys are erased.
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

    async def rewrap(self, *, unwrapped: bool = False) -> int:
        """Wrap every document that is not wrapped with the newest master key anew. Returns the number of sessions that
        were changed. Each is opened before it is written; the others are wrapped before the error of one that cannot be
        opened is raised. Cut off, it goes on at the next call.

        `unwrapped`: also those that nothing has wrapped, which anybody may have written.
        """

        async def anew(document: KeyDocument) -> KeyDocument:
            if document.erased_at is not None or document.wrap == self._wrap.name:
                return document
            return await self._sealed(document.session, await self._open(document, unwrapped=unwrapped))

        changed, refused = 0, None
        for info in await self._objects.list("keys/"):
            try:
                found = await self._at(info.key)
                # A look first: most documents need nothing, and `_change` would read each once more.
                if found is not None and await anew(found.document) is not found.document:
                    changed += await self._change(info.key, anew) is not None
            except (Corrupt, Invalid, KeyMissing) as error:
                refused = refused or error
        if refused is not None:
            raise refused
        return changed

    async def aclose(self) -> None:
        self._unwrapped.clear()
        await self._wrap.aclose()
        await self._objects.aclose()

    def _new(self) -> StoredKey:
        return StoredKey(id=self._entropy(KEY_ID_BYTES).hex(), at=self._wall(), key=self._entropy(KEY_BYTES))

    async def _sealed(self, session_id: str, contents: SealedKeys) -> KeyDocument:
        key = self._entropy(KEY_BYTES)
        wrapped = await self._wrap.wrap(session_id, key)
        sealed = AESGCM(key).encrypt(_ONCE, msgspec.json.encode(contents), _bound_to(session_id))
        return KeyDocument(repertory_keys=FORMAT, session=session_id, wrap=wrapped.wrap, key=wrapped.key, sealed=sealed)

    async def _open(self, document: KeyDocument, *, unwrapped: bool = False) -> SealedKeys:
        if document.erased_at is not None:
            raise KeyErased("the key of the session was erased: nobody can read it", session=document.session)
        if not document.wrap:
            raise _malformed(document.session)
        key = document.key if unwrapped and document.wrap == NOT_WRAPPED else await self._key(document)
        try:
            plain = AESGCM(key).decrypt(_ONCE, document.sealed, _bound_to(document.session))
        except (InvalidTag, ValueError) as error:
            text = "the document with the keys of a session was changed: bring back the one that was stored"
            raise Corrupt(text, session=document.session) from error
        return _read(plain, SealedKeys, document.session)

    async def _key(self, document: KeyDocument) -> bytes:
        name = (document.session, document.wrap, document.key)
        key = self._unwrapped.get(name)
        if key is None:
            key = await self._wrap.unwrap(document.session, WrappedKey(wrap=document.wrap, key=document.key))
            if len(self._unwrapped) >= _UNWRAPPED_MAX:
                self._unwrapped.clear()
            self._unwrapped[name] = key
        return key

    async def _change(self, key: str, change: Callable[[KeyDocument], Awaitable[KeyDocument]]) -> KeyDocument | None:
        """The changed document; None if there is none. Another process may change it at the same time: then the newer
        one is taken.
        """
        while (found := await self._at(key)) is not None:
            document = await change(found.document)
            if document is found.document:
                return document
            try:
                await self._objects.put(key, msgspec.json.encode(document), Update(found.version))
            except PreconditionFailed:
                continue
            return document
        return None

    async def _at(self, key: str) -> _Found | None:
        """The document under a key, of whose session it must be."""
        try:
            stored = await self._objects.get(key)
        except NotFound:
            return None
        document = _read(stored.body, KeyDocument, key)
        if document.repertory_keys != FORMAT:
            raise Invalid("the keys are of a later release", version=document.repertory_keys, known=FORMAT)
        # A document that was copied to another session's place would have that session sealed with a known key.
        if _key(document.session) != key:
            raise _malformed(key)
        return _Found(document, stored.version)


def _ring(session_id: str, contents: SealedKeys) -> KeyRing:
    try:
        keys = {bytes.fromhex(each.id): each.key for each in contents.keys}
    except ValueError as error:
        raise _malformed(session_id) from error
    if not keys or any(len(each) != KEY_ID_BYTES or len(keys[each]) != KEY_BYTES for each in keys):
        raise _malformed(session_id)
    current = bytes.fromhex(contents.keys[-1].id)
    return KeyRing(session_id=session_id, current=current, keys=keys, plain_until=contents.plain_until)


def _read(body: bytes, kind: type[_Read], whose: str) -> _Read:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(whose) from error


def _bound_to(session_id: str) -> bytes:
    return f"repertory keys\0{FORMAT}\0{session_id}".encode()


def _malformed(whose: str) -> Corrupt:
    """`whose`: the session, or where the document was found."""
    return Corrupt("the document with the keys of a session is malformed", session=whose)


def _key(session_id: str) -> str:
    return f"keys/{_name(session_id)}"


def _marker(session_id: str) -> str:
    return f"erased/{_name(session_id)}"


def _name(session_id: str) -> str:
    return sha256(session_id.encode()).hexdigest()
