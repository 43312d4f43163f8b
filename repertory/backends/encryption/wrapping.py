"""The wrapping of sessions' keys by a master key or by KMS: whoever reads the place of the keys alone has nothing."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from repertory.backends.aws_errors import (
    EXPIRED,
    OF_SESSIONS,
    UNKNOWN_KEY,
    WRONG_SIGNATURE,
    AwsErrors,
    Refusal,
    RetryPolicy,
    aws_client_errors,
    with_retries,
)
from repertory.backends.loop_clients import LoopClients
from repertory.core.journal.sealing import NONCE_BYTES
from repertory.errors import KeyMissing, RepertoryError, StoreUnavailable

NOT_WRAPPED = "none"


class WrappedKey(Struct, frozen=True, kw_only=True):
    """The key of a session as it is kept."""

    wrap: str
    """The `KeyWrap.name` of the object that can unwrap the key."""
    key: bytes


class KeyWrap(Protocol):
    """Wraps keys. Errors: `Unavailable`, `StoreFailed`."""

    @property
    def name(self) -> str:
        """The name of the wrapping key, which `WrappedKey.wrap` records."""
        ...

    async def wrap(self, session_id: str, material: bytes) -> WrappedKey: ...

    async def unwrap(self, session_id: str, wrapped: WrappedKey) -> bytes:
        """Unwrap a key. Errors: `KeyMissing` if something else has wrapped it, or for another session."""
        ...

    async def aclose(self) -> None: ...


class NoWrap:
    """Keeps keys as they are: the rights on their place protect them."""

    name = NOT_WRAPPED

    async def wrap(self, session_id: str, material: bytes) -> WrappedKey:
        del session_id
        return WrappedKey(wrap=NOT_WRAPPED, key=material)

    async def unwrap(self, session_id: str, wrapped: WrappedKey) -> bytes:
        if wrapped.wrap != NOT_WRAPPED:
            raise _unknown(session_id, wrapped)
        return wrapped.key

    async def aclose(self) -> None:
        return


class MasterKeys:
    """Wraps with AES-256-GCM under a master key; unwraps what former ones have wrapped."""

    def __init__(self, master: bytes, former: Sequence[bytes], entropy: Callable[[int], bytes]) -> None:
        self._keys = {_fingerprint(each): AESGCM(each) for each in (*former, master)}
        self._entropy = entropy
        self.name = _fingerprint(master)

    async def wrap(self, session_id: str, material: bytes) -> WrappedKey:
        nonce = self._entropy(NONCE_BYTES)
        return WrappedKey(
            wrap=self.name, key=nonce + self._keys[self.name].encrypt(nonce, material, session_id.encode())
        )

    async def unwrap(self, session_id: str, wrapped: WrappedKey) -> bytes:
        cipher = self._keys.get(wrapped.wrap)
        if cipher is None:
            raise _unknown(session_id, wrapped)
        nonce, body = wrapped.key[:NONCE_BYTES], wrapped.key[NONCE_BYTES:]
        try:
            return cipher.decrypt(nonce, body, session_id.encode())
        except (InvalidTag, ValueError) as error:
            text = "the key of the session was not wrapped by this master key, or was changed since"
            raise KeyMissing(text, session=session_id, wrapped_by=wrapped.wrap) from error

    async def aclose(self) -> None:
        return


def _fingerprint(master: bytes) -> str:
    return f"master {hmac.digest(master, b'repertory master key', 'sha256')[:8].hex()}"


def _unknown(session_id: str, wrapped: WrappedKey) -> KeyMissing:
    text = "the key of the session is wrapped by a master key that was not given"
    if wrapped.wrap == NOT_WRAPPED:  # Whoever can write to the place of keys could have put it there.
        text = "nothing has wrapped the key of the session: if its place was yours alone, rewrap(unwrapped=True) does"
    return KeyMissing(text, session=session_id, wrapped_by=wrapped.wrap)


# AWS KMS wraps with the session's id as encryption context: what it unwrapped for whom stands in CloudTrail.

CONTEXT = "repertory:session"


class KmsWrap:
    """Wraps with a key of AWS KMS, one request each; unwraps what former ones have wrapped. It needs kms:Encrypt and
    kms:Decrypt on the key.
    """

    def __init__(
        self, key_id: str, clients: LoopClients, former: Sequence[str] = (), jitter: Callable[[], float] | None = None
    ) -> None:
        self.name = f"kms {key_id}"
        self._key_id = key_id
        self._former = former
        self._clients = clients
        numbers = count(1)
        self._jitter = jitter or (lambda: (next(numbers) * 0.618) % 1.0)

    async def wrap(self, session_id: str, material: bytes) -> WrappedKey:
        answer = await self._ask("encrypt", session_id, {"KeyId": self._key_id, "Plaintext": material})
        return WrappedKey(wrap=self.name, key=bytes(answer["CiphertextBlob"]))

    async def unwrap(self, session_id: str, wrapped: WrappedKey) -> bytes:
        if not wrapped.wrap.startswith("kms "):
            raise _unknown(session_id, wrapped)
        # The key is named: KMS would else take any key that the identity may use, also one of whoever wrote the place.
        refused: KeyMissing | None = None
        named = wrapped.wrap.removeprefix("kms ")
        for key_id in sorted((self._key_id, *self._former), key=lambda each: each != named):
            try:
                answer = await self._ask("decrypt", session_id, {"KeyId": key_id, "CiphertextBlob": wrapped.key})
                return bytes(answer["Plaintext"])
            except KeyMissing as error:
                refused = refused or error
        raise refused or _unknown(session_id, wrapped)

    async def aclose(self) -> None:
        await self._clients.aclose()

    async def _ask(self, operation: str, session_id: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        async def attempt() -> Mapping[str, Any]:
            try:
                client = await self._clients.get()
                return await getattr(client, operation)(EncryptionContext={CONTEXT: session_id}, **request)
            except aws_client_errors() as error:
                where = {"session": session_id, "key": request["KeyId"]}
                raise _KMS_ERRORS.from_foreign(error, where) from error

        return await with_retries(attempt, RetryPolicy(unavailable=StoreUnavailable), self._jitter)


# Source: AWS KMS API reference, errors of Encrypt and Decrypt.

_MISSING = {
    "notfoundexception": "AWS KMS has no such key: check its id, its region, and that it was not deleted",
    "invalidciphertextexception": "AWS KMS cannot unwrap the key: another key has wrapped it, or for another session",
    "incorrectkeyexception": "AWS KMS cannot unwrap the key: another key has wrapped it",
    "disabledexception": "the key is disabled in AWS KMS: enable it",
    "kmsinvalidstateexception": "the key cannot be used in AWS KMS now: it is disabled, or about to be deleted",
}


def _particular(refusal: Refusal) -> RepertoryError | None:
    text = _MISSING.get(refusal.name)
    return None if text is None else KeyMissing(text, **refusal.fields)


_KMS_ERRORS = AwsErrors(
    service="AWS KMS",
    hints={
        "accessdeniedexception": "the identity may not do this: allow kms:Encrypt and kms:Decrypt on the key",
        "unrecognizedclientexception": UNKNOWN_KEY,
        "invalidsignatureexception": WRONG_SIGNATURE,
        "expiredtokenexception": EXPIRED,
    },
    particular=_particular,
    kinds=OF_SESSIONS,
)
