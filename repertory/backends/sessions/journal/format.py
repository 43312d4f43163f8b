"""The format of an object with rows and their header. `docs/reference/formats/journal-objects.md` describes it.

    magic (4) || version (1) || CRC-32 of the rest (4) || bytes of proofs (4) || proofs || zlib stream
    zlib stream = bytes of the header (4) || header (JSON) || a fixed part per row || the bodies

Proofs are links and salts, which do not compress. Integers are big-endian. The zlib stream has a preset dictionary of
common text, since most objects are small.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from struct import Struct, error
from typing import Literal, NamedTuple, TypedDict, cast

import msgspec

from repertory.backends.ports import ObjectStore
from repertory.backends.sessions.requests import delete_all, find_all
from repertory.core.ids import RESERVED, check_id
from repertory.core.journal.codec import defaults_of
from repertory.core.journal.packing import deflated, inflated
from repertory.core.journal.rows import LINK_BYTES, SALT_BYTES, Row
from repertory.errors import CorruptJournal, Invalid

MAGIC = b"RptJ"
FORMAT_VERSION = 1
_START = Struct(">4sBII")
_LENGTH = Struct(">I")
_ROW = Struct(">HQBBQBI")
"""Agent number, sequence number, kind, version, low, 1 if the content is there, bytes of the body."""
# zlib's own default. Objects are a few KB; what a put costs is its request, not its bytes.
_LEVEL = 6
_DICTIONARY = (
    b'{"name":"","description":"","error":"","path":"","id":"","url":"","type":"","value":"","data":"","code":"'
    b'","status":"success","content":[{"text":"","toolResult":{"toolUseId":"tooluse_","status":"error","content":[{"text":"'
    b'{"at":1.0,"set":{"},"delete":[],"full":{"at":1.0,"tool_use_id":"tooluse_","name":"","idempotency_key":"/default/'
    b'"kind":"window","kind":"chunk","generation":1,"first":1,"last":128,"kept":[],"fences":[],"erasing":[["default",'
    b'{"kind":"head","session":"","generation":1,"owner":"","edition":1,"commit":1,"orderly":true,"window":"1-1","merged":'
    b'128,"tidied":128,"created_at":1.0,"updated_at":1.0,"seqs":{"default":2},"agents":["default"],"rows":40}'
    b'"view":{"first_shown":1,"manager":"SummarizingConversationManager","manager":"SlidingWindowConversationManager",'
    b'"manager":"NullConversationManager","manager_state":{"removed":0}},"turn":1,"index":1}'
    b'"content":[{"toolUse":{"toolUseId":"tooluse_","name":"","input":{"'
    b'"content":[{"text":"."}],"metadata":{"usage":{"inputTokens":1,"outputTokens":1,"totalTokens":1},"custom":{}}},"turn":1,'
    b'"index":1,"idempotency_token":"{"at":17,"message":{"role":"assistant","content":[{"text":"'
    b'{"at":17,"message":{"role":"user","content":[{"text":"'
    b'{"kind":"segment","session":"","commit":1,"owner":"","generation":1,"agents":["default"],"rows":2}'
)
"""Part of the format: data written with it can only be read with it."""

Header = Mapping[str, object]


class Packed(NamedTuple):
    """The header and rows of an object."""

    header: dict[str, object]
    rows: list[Row]


def pack(header: Header, rows: Sequence[Row]) -> bytes:
    """The bytes of an object. Errors: `Invalid` for malformed rows."""
    agents = {agent_id: number for number, agent_id in enumerate(dict.fromkeys(row.agent_id for row in rows))}
    text = json.dumps({**header, "agents": list(agents), "rows": len(rows)}, ensure_ascii=False, separators=(",", ":"))
    header_bytes = text.encode()
    # Apart from the stream: links and salts are random, and would spoil what deflate finds before and behind them.
    fixed, proofs = bytearray(), bytearray()
    # Agents by number: their ids would be repeated with every row.
    for agent_id, seq, kind, version, low, link, salt, body in rows:
        if len(link) != LINK_BYTES or len(salt) not in (0, SALT_BYTES):
            raise Invalid("not a row of a journal", agent=agent_id, seq=seq)
        fixed += _ROW.pack(agents[agent_id], seq, kind, version, low, bool(salt), len(body))
        proofs += link
        proofs += salt
    plain = b"".join((_LENGTH.pack(len(header_bytes)), header_bytes, fixed, *(row.body for row in rows)))
    rest = _LENGTH.pack(len(proofs)) + proofs + deflated(plain, _DICTIONARY, _LEVEL)
    return MAGIC + bytes((FORMAT_VERSION,)) + _LENGTH.pack(zlib.crc32(rest)) + rest


def unpack(stored: bytes) -> Packed:
    """The header and rows. Errors: ValueError that says what is wrong with the bytes."""
    # Asked before anything else, so that a truncated or foreign object gets a sentence of its own.
    if stored[: len(MAGIC)] != MAGIC:
        msg = "not an object of a journal" if stored else "an empty object"
        raise ValueError(msg)
    try:
        _, version, checksum, proof_bytes = _START.unpack_from(stored)
        if version != FORMAT_VERSION:
            msg = f"unknown version {version} of the format; {FORMAT_VERSION} is known"
            raise ValueError(msg)
        # Before the inflating: a flipped bit could make a stream of kilobytes one of gigabytes.
        if zlib.crc32(memoryview(stored)[_START.size - _LENGTH.size :]) != checksum:
            msg = "the bytes do not match their checksum"
            raise ValueError(msg)
        proofs = stored[_START.size : _START.size + proof_bytes]
        return _read(inflated(memoryview(stored)[_START.size + proof_bytes :], _DICTIONARY), proofs)
    except (error, KeyError, TypeError, IndexError, RecursionError) as cause:
        # With a correct checksum these can only come from another program's object: it is damage of one session, and
        # must not end the store. RecursionError: JSON of a thousand brackets.
        msg = f"malformed: {cause}"
        raise ValueError(msg) from cause


def _read(plain: bytes, proofs: bytes) -> Packed:
    (header_bytes,) = _LENGTH.unpack_from(plain)
    offset = _LENGTH.size + header_bytes
    header = json.loads(plain[_LENGTH.size : offset])
    if not isinstance(header, dict):
        msg = "the header is no JSON object"
        raise TypeError(msg)
    fields = cast("dict[str, object]", header)
    agents, count = cast("list[object]", fields.pop("agents")), cast("int", fields.pop("rows"))
    names = [agent for agent in agents if isinstance(agent, str)]
    if len(names) != len(agents):
        msg = "the header names an agent that is no text"
        raise TypeError(msg)
    rows: list[Row] = []
    body_at, proof_at = offset + count * _ROW.size, 0
    for number in range(count):
        agent, seq, kind, version, low, salted, size = _ROW.unpack_from(plain, offset + number * _ROW.size)
        salt_at = proof_at + LINK_BYTES
        link, salt = proofs[proof_at:salt_at], proofs[salt_at : salt_at + SALT_BYTES] if salted else b""
        rows.append(Row(names[agent], seq, kind, version, low, link, salt, plain[body_at : body_at + size]))
        proof_at, body_at = salt_at + len(salt), body_at + size
    # Slices behind the end of bytes are silently shorter, so the sum is what proves that nothing is missing.
    if (body_at, proof_at) != (len(plain), len(proofs)):
        msg = "more or fewer bytes than its rows have"
        raise ValueError(msg)
    return Packed(fields, rows)


ObjectKind = Literal["head", "segment", "chunk", "window"]


class HeadObject(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a head, without the rows that it may hold."""

    session: str
    generation: int = 0
    """The last owner's. It rises with each owner."""
    owner: str | None = None
    """None when the session was released or deleted."""
    edition: int = 0
    """Rises with each put of the head, so that no two heads are equal."""
    commit: int = 0
    """The head covers everything up to this commit: the rows that opening needs, and `seqs`."""
    orderly: bool = False
    """True if `commit` is the last commit, and no put of a former owner can still arrive."""
    window: str | None = None
    """The name of the object with the rows that opening needs; None when they are in the head."""
    base: int = 0
    """Commits up to this one belong to a deleted session of the same name."""
    merged: int = 0
    """Commits up to this one are in chunks."""
    tidied: int = 0
    """Segments up to this one were merged and then removed."""
    seqs: Mapping[str, int] = {}
    """Agent id to its last sequence number."""
    tail: Mapping[str, int] = {}
    """Agent id to the first of its rows that are in the head alone, if there are any: no segment has them yet."""
    erasing: tuple[tuple[str, int], ...] = ()
    """Rows (agent id, sequence number) whose content must be destroyed and may still be stored; with the number 0 an
    agent that is forgotten.
    """
    created_at: float = 0.0
    updated_at: float = 0.0
    deleted: bool = False
    pending_work: bool = False
    """True if markers of pending work may be stored. Means something with `orderly` alone."""
    marks: Mapping[str, str] = {}
    """Agent id to the state of the documents beside the journal, where there are any."""


class HeadChanges(TypedDict, total=False):
    """The head fields that an owner changes."""

    owner: str | None
    commit: int
    orderly: bool
    window: str | None
    seqs: Mapping[str, int]
    tail: Mapping[str, int]
    erasing: tuple[tuple[str, int], ...]
    created_at: float
    updated_at: float
    deleted: bool
    pending_work: bool


# A head is put again and again, so it says only what differs from a new one.
_DEFAULTS = {name: default for name, default in defaults_of(HeadObject).items() if name != "seqs"}


def pack_head(head: HeadObject, rows: Sequence[Row]) -> bytes:
    header = {name: getattr(head, name) for name in _DEFAULTS if getattr(head, name) != _DEFAULTS[name]}
    return pack({"kind": "head", **header, "seqs": head.seqs}, rows)


def head_in(packed: Packed) -> HeadObject:
    """The head in a packed object. Errors: ValueError."""
    header = {name: value for name, value in packed.header.items() if name != "kind"}
    # Unknown fields are refused and not skipped: a head written by a newer release may say something that must be
    # heeded, such as how contents are erased.
    for name, value in header.items():
        if name not in _TYPES or not isinstance(value, _TYPES[name]):
            msg = f"the head has a field that it cannot have: {name}"
            raise ValueError(msg)
    for name in ("seqs", "tail"):
        seqs = cast("dict[str, object]", header.get(name, {}))
        header[name] = {agent_id: whole_number(seq) for agent_id, seq in seqs.items()}
    header["marks"] = marks_in(header.get("marks"))
    header["erasing"] = erasing_in(header.get("erasing", []))
    made = cast("Mapping[str, str]", header)  # each is of its own type, as was just seen
    return HeadObject(**made)  # pyright: ignore[reportArgumentType]


def marks_in(value: object) -> dict[str, str]:
    """The marks in a header."""
    marks = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    return {agent_id: str(mark) for agent_id, mark in marks.items()}


def erasing_in(value: object) -> tuple[tuple[str, int], ...]:
    """The rows that a header lists. Errors: ValueError."""
    pairs = cast("list[object]", value) if isinstance(value, list) else []
    found: list[tuple[str, int]] = []
    for pair in pairs:
        agent_id, seq = cast("list[object]", pair) if isinstance(pair, list) else (None, None)
        found.append((str(agent_id), whole_number(seq)))
    return tuple(found)


def whole_number(value: object) -> int:
    """An integer in a header. Errors: ValueError."""
    # True is an int in Python, and would pass as number 1.
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"a number is none: {value!r}"
        raise ValueError(msg)
    return value


def read_object(stored: bytes, kind: ObjectKind, session_id: str | None, key: str) -> Packed:
    """The header and rows of an object, checked to have this kind and to belong to this session (None: any).

    Errors: `CorruptJournal` with session and key.
    """
    try:
        packed = unpack(stored)
        if packed.header.get("kind") != kind:
            msg = f"a {packed.header.get('kind')} has the key of a {kind}"
            raise ValueError(msg)
        if session_id is not None and packed.header.get("session") != session_id:
            msg = f"another session's: {packed.header.get('session')}"
            raise ValueError(msg)
    except ValueError as error:
        raise CorruptJournal("a damaged object", session=session_id, key=key, cause=str(error)) from error
    return packed


_TYPES: dict[str, type | tuple[type, ...]] = {
    "session": str,
    "generation": int,
    "owner": str,
    "edition": int,
    "commit": int,
    "orderly": bool,
    "window": str,
    "base": int,
    "merged": int,
    "tidied": int,
    "seqs": dict,
    "tail": dict,
    "erasing": list,
    "created_at": (int, float),
    "updated_at": (int, float),
    "deleted": bool,
    "pending_work": bool,
    "marks": dict,
}


# The keys of a session's objects. Its folder is `journals/<session>`, or `<session>/journal` where its snapshots lie
# beside its journal:
#
# <folder>/head                       who owns the session, what opening it needs, or where that lies
# <folder>/s/<commit, 16 digits>      a segment: what one commit added
# <folder>/c/<commit, 16 digits>      a chunk: the segments from this commit on, merged
# <folder>/w/<generation>-<edition>   what opening needs, when it is too large for the head
# <folder>/wanted                     put to read the store's clock, to learn whether the owner is alive
#
# `pending/journals/<session>/...` has the markers of pending work (`pending_work.py`), for journals alone.

ROOT = "journals"
QUARANTINE = "quarantine"
_DIGITS = 16
# A planted key with 9999999999999999 would leave no number for the next commit.
_TOO_HIGH = "1000000000000000"


class SessionKeys(NamedTuple):
    folder: str
    aside: str
    """The folder for data of the session that is set aside."""
    pending_work: str | None = None
    """Before the keys of the markers of its pending work, with a slash at its end; None: none are kept."""

    @property
    def head(self) -> str:
        return f"{self.folder}/head"

    @property
    def wanted(self) -> str:
        return f"{self.folder}/wanted"

    @property
    def segments(self) -> str:
        return f"{self.folder}/s/"

    @property
    def chunks(self) -> str:
        return f"{self.folder}/c/"

    @property
    def windows(self) -> str:
        return f"{self.folder}/w/"

    def segment(self, commit: int) -> str:
        return f"{self.folder}/s/{commit:0{_DIGITS}}"

    def chunk(self, first: int) -> str:
        return f"{self.folder}/c/{first:0{_DIGITS}}"

    def window(self, name: str) -> str:
        return f"{self.folder}/w/{name}"


class Layout(NamedTuple):
    """The keys of a store's journals: a session's folder is `before` + its name + `behind`."""

    before: str
    behind: str
    aside_before: str
    aside_behind: str
    pending_work: str | None = None
    """Before the names of sessions that owe work; None: nobody is told."""

    def keys_of(self, session_id: str) -> SessionKeys:
        """The keys of a session. Its folder has its id as name where that is possible. Errors: `Invalid`."""
        return self._keys(self.name_of(check_id(session_id, "session id")))

    def name_of(self, session_id: str) -> str:
        """The name of a session's folder."""
        if session_id.startswith((RESERVED, "%")):
            # Folders with the reserved prefix are the store's own, and one with "%" could imitate a hashed name.
            return f"%{sha256(session_id.encode()).hexdigest()}"  # the head has the id itself
        return session_id

    def is_id(self, name: str) -> bool:
        """True if the name of a folder is the session's id itself."""
        return not name.startswith("%")

    def keys_around(self, key: str) -> SessionKeys | None:
        """The keys of the session whose folder holds this key, or None."""
        name = key.removeprefix(self.before).split("/", 1)[0]
        keys = self._keys(name)
        return keys if name and key.startswith(f"{keys.folder}/") else None

    def name_in(self, keys: SessionKeys) -> str:
        return keys.folder.removeprefix(self.before).removesuffix(self.behind)

    def _keys(self, name: str) -> SessionKeys:
        folder = f"{self.before}{name}{self.behind}"
        pending_work = None if self.pending_work is None else f"{self.pending_work}{name}/"
        return SessionKeys(folder, f"{self.aside_before}{name}{self.aside_behind}", pending_work)

    def keys_of_markers(self, key: str) -> SessionKeys:
        """The keys of the session that a marker of pending work names."""
        return self._keys(key.removeprefix(self.pending_work or "").split("/", 1)[0])


JOURNALS = Layout(f"{ROOT}/", "", f"{QUARANTINE}/{ROOT}/", "", pending_work=f"pending/{ROOT}/")
"""Journals alone: `journals/<session>/...`."""
BESIDE_SNAPSHOTS = Layout("", "/journal", "", "/quarantine")
"""Journals beside snapshots: `<session>/journal/...`, so that a whole session is below `<session>/`."""


def commit_of_key(key: str) -> int | None:
    """The commit number in the key of a segment or chunk; None for other keys, also those with a number that no session
    reaches.
    """
    name = key.rpartition("/")[2]
    return int(name) if len(name) == _DIGITS and name.isascii() and name.isdigit() and name < _TOO_HIGH else None


_FENCE_BYTES_MAX = 1024
"""A fence holds two ids and three numbers, and is never larger than this."""


async def remove_session(objects: ObjectStore, keys: SessionKeys, up_to: int | None = None) -> bool:
    """Remove everything but the head, which says that the session is deleted, and the fences, which keep former owners
    out.

    Commits after `up_to` stay. Returns True if anything was removed.
    """
    # Fences stay for ever: without one, the late put of a frozen owner would find its key free in a new session.
    found = [info for info in await objects.list(f"{keys.folder}/") if info.key != keys.head]
    if up_to is not None:
        found = [info for info in found if (commit_of_key(info.key) or 0) <= up_to]
    # Whether a segment is a fence stands inside it; the listing's size spares reading the large ones.
    small = [info.key for info in found if info.key.startswith(keys.segments) and info.size_bytes <= _FENCE_BYTES_MAX]
    stored = await find_all(objects, small)
    fences = {key for key, item in zip(small, stored, strict=True) if item is not None and _is_fence(item.body)}
    gone = [info.key for info in found if info.key not in fences]
    if gone:
        await delete_all(objects, gone)
    return bool(gone)


def _is_fence(body: bytes) -> bool:
    try:
        header, rows = unpack(body)
    except ValueError:
        return False
    return header.get("kind") == "segment" and not rows and not header.get("erasing") and not header.get("emptied")
