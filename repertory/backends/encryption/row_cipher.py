"""AES-256-GCM over the bodies of one session's rows, and over the calls that are posted to it.

A nonce is derived from everything that is sealed with it: key, place, salt and content. So the same bytes come out of
the same row again, and different rows get different nonces, whatever a fork, a rewind, a copy or a fenced writer does.
Each agent has a key of its own for each million sequence numbers, so no key seals enough for two nonces to meet.
"""

from __future__ import annotations

import hmac
from functools import partial
from hashlib import blake2b

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from repertory.backends.encryption_ports import KeyRing
from repertory.core.journal.rows import Row
from repertory.core.journal.sealing import (
    NONCE_BYTES,
    SEALED,
    SealedBody,
    head_bytes,
    head_of,
    is_sealed,
    journal_address,
    row_address,
    split,
    time_of,
)
from repertory.core.json_bytes import from_base64, to_base64
from repertory.errors import Corrupt, CorruptJournal, KeyMissing

_STRETCH_BITS = 20
_ROWS, _NONCES, _CALLS = b"repertory rows\0", b"repertory nonces\0", b"repertory calls\0"


class RowCipher:
    """Seals and opens what belongs to one session. May be used from several threads."""

    def __init__(self, keys: KeyRing) -> None:
        self.keys = keys
        self._nonces = hmac.digest(keys.keys[keys.current], _NONCES, "sha256")
        self._ciphers: dict[tuple[bytes, str, int], AESGCM] = {}
        self._places: dict[str, bytes] = {}

    def seal(self, row: Row) -> Row:
        """See `repertory.core.journal.sealing.Seal`. Written for speed: every row of a turn comes here."""
        agent_id, seq, kind, version, low, link, salt, body = row
        version, current = version | SEALED, self.keys.current
        address = row_address(self._journal(agent_id), seq, kind, version, low)
        # Derived and not drawn: sealing the same row again gives the same bytes, so a repeated commit is recognized as
        # the same. Two different rows get different nonces, which is all that GCM asks.
        nonce = self._nonce(address + salt + body)
        head = head_bytes(time_of(body), current, nonce)
        # The address is bound to the text: a sealed row that is moved to another place, agent or session cannot be
        # opened.
        ciphertext = self._of_row(current, agent_id, seq).encrypt(nonce, body, head + address)
        return Row(agent_id, seq, kind, version, low, link, salt, SealedBody.known(head + ciphertext, body))

    def opened(self, row: Row) -> Row:
        """The row with the way to its content, which is opened when somebody looks at it."""
        if row.erased:
            return row
        if is_sealed(row):
            return row._replace(body=SealedBody.unopened(row.body, partial(self._open, row._replace(body=b""))))
        # Plain text behind the first sealed row was written by somebody without the keys.
        if row.seq > self.keys.plain_until.get(row.agent_id, 0):
            return row._replace(body=SealedBody.unopened(row.body, partial(self._refuse, row._replace(body=b""))))
        return row

    def _open(self, row: Row, body: bytes) -> bytes:
        where = {"session": self.keys.session_id, "agent": row.agent_id, "seq": row.seq}
        head = head_of(body)
        if head is None:
            raise CorruptJournal("the sealed row is malformed", **where)
        if head.key_id not in self.keys.keys:
            raise key_missing(self.keys.session_id, head.key_id)
        first, ciphertext = split(body)
        try:
            address = row_address(self._journal(row.agent_id), *row[1:5])
            return self._of_row(head.key_id, row.agent_id, row.seq).decrypt(head.nonce, ciphertext, first + address)
        except InvalidTag as error:
            text = "the row was not sealed for this place with the session's key: it was changed, moved or copied here"
            raise CorruptJournal(text, **where) from error

    def _refuse(self, row: Row, body: bytes) -> bytes:
        del body
        where = {"session": self.keys.session_id, "agent": row.agent_id, "seq": row.seq}
        text = "the row is in plain text, though the session was encrypted before it: it was written without the keys"
        raise CorruptJournal(text, **where)

    # Calls that nobody waits for.

    def seal_text(self, name: str, text: str) -> str:
        """A text that is kept beside the session; `name` says which one it is."""
        body, address = text.encode(errors="surrogatepass"), _CALLS + name.encode()
        nonce = self._nonce(address + body)
        sealed = self._of_calls(self.keys.current).encrypt(nonce, body, address)
        return to_base64(self.keys.current + nonce + sealed)

    def open_text(self, name: str, sealed: str) -> str:
        """Decrypt a text. Errors: `KeyMissing`, `Corrupt`."""
        try:
            key_id, nonce, body = _parts(from_base64(sealed))
            if key_id not in self.keys.keys:
                raise key_missing(self.keys.session_id, key_id)
            address = _CALLS + name.encode()
            return self._of_calls(key_id).decrypt(nonce, body, address).decode(errors="surrogatepass")
        except (InvalidTag, ValueError) as error:
            text = "a posted call was not sealed for this place with the session's key"
            raise Corrupt(text, session=self.keys.session_id) from error

    def _nonce(self, of: bytes) -> bytes:
        return blake2b(of, key=self._nonces, digest_size=NONCE_BYTES).digest()

    def _journal(self, agent_id: str) -> bytes:
        address = self._places.get(agent_id)
        if address is None:
            address = self._places[agent_id] = journal_address(self.keys.session_id, agent_id)
        return address

    def _of_row(self, key_id: bytes, agent_id: str, seq: int) -> AESGCM:
        stretch = seq >> _STRETCH_BITS
        cipher = self._ciphers.get((key_id, agent_id, stretch))
        if cipher is None:
            # 2^20 rows for each key: with nonces of 96 bits, the chance that two meet stays far below what GCM allows
            # for.
            derived = hmac.digest(self.keys.keys[key_id], _ROWS + stretch.to_bytes(8) + agent_id.encode(), "sha256")
            cipher = self._ciphers[key_id, agent_id, stretch] = AESGCM(derived)
        return cipher

    def _of_calls(self, key_id: bytes) -> AESGCM:
        return AESGCM(hmac.digest(self.keys.keys[key_id], _CALLS, "sha256"))


def _parts(body: bytes) -> tuple[bytes, bytes, bytes]:
    return body[:8], body[8 : 8 + NONCE_BYTES], body[8 + NONCE_BYTES :]


def key_missing(session_id: str, key_id: bytes | None) -> KeyMissing:
    """`key_id`: None where the session has no key at all."""
    text = "the key of the session is not among the keys of this place: bring the keys back"
    return KeyMissing(text, session=session_id, key_id=None if key_id is None else key_id.hex())
