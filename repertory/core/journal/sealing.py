"""Sealed rows: rows whose bodies are encrypted, and what of them is readable without the key.

    body   = mark (1 byte, 2), time (8), key id (8), nonce (12), ciphertext with its tag
    place  = session, agent, seq, kind, version, low: authenticated with the head, so no row can stand elsewhere

The highest bit of the version says that a row is sealed. The chain covers the sealed body, so it is proved without the
key, and an erased content is erased as ever. Ciphers are the backends'; `docs/guides/sessions/encryption.md` tells the
whole.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from repertory.core.journal.rows import Row, first_link, link_of
from repertory.errors import EncryptionNeeded, KeyErased, KeyMissing

SEALED = 0x80
"""The bit of a row's version that says that its body is sealed. The other bits are the version of what is inside."""
MARK = b"\x02"
"""The first byte of a sealed body. No plain body begins with it, and no packed one of a store."""
KEY_ID_BYTES = 8
NONCE_BYTES = 12

_HEAD = struct.Struct(">cd8s12s")
_ROW_ADDRESS = struct.Struct(">QBBQ")
_LENGTHS = struct.Struct(">HH")
_AT = b'{"at":'

OpenBody: TypeAlias = Callable[[bytes], bytes]
"""The plain body of a sealed one. Errors: `CorruptJournal`; those that say why there is no key."""
Seal: TypeAlias = Callable[[Row], Row]
"""The row with its body sealed, and the version that says so. Its link is the caller's to make. The same row gives the
same bytes again, as long as the session has the same key.
"""


LOCKED = (EncryptionNeeded, KeyErased, KeyMissing)
"""The errors of a sealed body that cannot be opened here, though it is not damaged."""


class SealedHead(NamedTuple):
    """The part of a sealed body that is readable without the key."""

    at: float
    """The epoch seconds at which the record was made; NaN if it does not say."""
    key_id: bytes
    nonce: bytes


class SealedBody(bytes):
    """The bytes that are stored, and the way to what is in them: it is opened when it is first looked at."""

    _open: OpenBody
    _plain: bytes | None

    @classmethod
    def unopened(cls, sealed: bytes, opens: OpenBody) -> SealedBody:
        body = cls(sealed)
        body._open, body._plain = opens, None
        return body

    @classmethod
    def known(cls, sealed: bytes, plain: bytes) -> SealedBody:
        body = cls(sealed)
        body._plain = plain
        return body

    @property
    def plain(self) -> bytes:
        """Errors: those of `OpenBody`."""
        # Opened once, and only if somebody looks: moving or verifying rows needs no key.
        if self._plain is None:
            self._plain = self._open(bytes(self))
        return self._plain


def is_sealed(row: Row) -> bool:
    """True if the body is ciphertext; also when it was erased since."""
    return row[3] >= SEALED


def plain_of(version: int, body: bytes) -> tuple[int, bytes]:
    """The version and the body of a record, opened if it was sealed.

    Errors: `EncryptionNeeded` when it comes from a place that was opened without keys; those of `OpenBody`.
    """
    if isinstance(body, SealedBody):
        return version & ~SEALED, body.plain
    if version >= SEALED and head_of(body) is not None:
        raise EncryptionNeeded(NEEDED)
    return version, body


NEEDED = "the session is encrypted: open its place with encryption=..., or the command with --keys"


def plain_bodies(rows: Iterable[Row]) -> list[bytes]:
    """The bodies of many rows, opened where somebody has the key."""
    return [body.plain if isinstance(body, SealedBody) else body for body in (row[7] for row in rows)]


def head_of(body: bytes) -> SealedHead | None:
    """The head of a sealed body, readable without the key; None if the body is not sealed, or too short."""
    if body[:1] != MARK or len(body) < _HEAD.size:
        return None
    return SealedHead(*_HEAD.unpack_from(body)[1:])


def head_bytes(at: float, key_id: bytes, nonce: bytes) -> bytes:
    """The head of a sealed body; see `SealedHead`."""
    return _HEAD.pack(MARK, at, key_id, nonce)


def split(body: bytes) -> tuple[bytes, bytes]:
    """The head, and the ciphertext behind it."""
    return body[: _HEAD.size], body[_HEAD.size :]


def time_of(plain: bytes) -> float:
    """The time of a record from its body, of which only the beginning is read; NaN if it does not begin with one."""
    if not plain.startswith(_AT):
        return math.nan
    end = plain.find(b",", len(_AT), len(_AT) + 40)
    try:
        return float(plain[len(_AT) : end if end > 0 else -1])
    except ValueError:
        return math.nan


def journal_address(session_id: str, agent_id: str) -> bytes:
    """The beginning of the places of an agent's rows."""
    # Lengths in front: "ab" and "c" must not give the same bytes as "a" and "bc".
    session, agent = session_id.encode(), agent_id.encode()
    return b"".join((_LENGTHS.pack(len(session), len(agent)), session, agent))


def row_address(journal: bytes, seq: int, kind: int, version: int, low: int) -> bytes:
    """The location of a row, as bytes that no other location has. `journal`: its `journal_address`."""
    return journal + _ROW_ADDRESS.pack(seq, kind, version, low)


def sealed_journal(rows: Sequence[Row], seal: Seal) -> list[Row]:
    """A whole journal of plain rows, with sealed bodies and the links that follow from them. Rows that are sealed
    already must be of the same session: they are taken as they are.
    """
    return _relinked(row if row.erased or is_sealed(row) else seal(row) for row in rows)


def sealed_journals(rows: Sequence[Row], seal: Seal) -> list[Row]:
    """`sealed_journal` of whole journals of several agents, one behind the other."""
    journals: dict[str, list[Row]] = {}
    for row in rows:
        journals.setdefault(row.agent_id, []).append(row)
    return [row for journal in journals.values() for row in sealed_journal(journal, seal)]


def plain_journal(rows: Sequence[Row]) -> Sequence[Row]:
    """A whole journal with its bodies opened, and the links that follow from them; the same rows if none is sealed.
    Salts stay, so the same journal gives the same links again.

    Errors: as `plain_of`.
    """
    if not any(map(is_sealed, rows)):
        return rows
    return _relinked(row if row.erased else _opened(row) for row in rows)


def _opened(row: Row) -> Row:
    version, body = plain_of(row.version, row.body)
    return row._replace(version=version, body=body)


def _relinked(rows: Iterable[Row]) -> list[Row]:
    made: list[Row] = []
    for row in rows:
        link = link_of(made[-1].link if made else first_link(row.agent_id), row)
        made.append(row._replace(link=link))
    return made
