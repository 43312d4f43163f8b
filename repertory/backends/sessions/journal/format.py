"""How rows and what is known of them are written into one object. `docs/journal-on-objects.md` describes it.

    magic (4) || version (1) || CRC-32 of the rest (4) || bytes of proofs (4) || proofs || zlib stream
    zlib stream = bytes of the header (4) || header (JSON) || a fixed part per row || the bodies

Proofs are links and salts, which nothing can compress. Everything that has several bytes is big-endian. The zlib stream
has a preset dictionary of what nearly every object says, since most of them are small.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from struct import Struct, error
from typing import NamedTuple, cast

from repertory.core.journal.rows import LINK_BYTES, SALT_BYTES, Row
from repertory.errors import Invalid

MAGIC = b"RptJ"
FORMAT_VERSION = 1
_START = Struct(">4sBII")
_LENGTH = Struct(">I")
_ROW = Struct(">HQBBQBI")
"""Which agent, sequence number, kind, version, low, whether the content is there, bytes of the body."""
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
"""Part of the format: what was written with it is read with it."""

Header = Mapping[str, object]


class Packed(NamedTuple):
    """What stands in an object."""

    header: dict[str, object]
    rows: list[Row]


def pack(header: Header, rows: Sequence[Row]) -> bytes:
    """The bytes of an object. Errors: `Invalid` for rows that are none."""
    agents = {agent_id: number for number, agent_id in enumerate(dict.fromkeys(row.agent_id for row in rows))}
    text = json.dumps({**header, "agents": list(agents), "rows": len(rows)}, ensure_ascii=False, separators=(",", ":"))
    said = text.encode()
    fixed, proofs = bytearray(), bytearray()
    for agent_id, seq, kind, version, low, link, salt, body in rows:
        if len(link) != LINK_BYTES or len(salt) not in (0, SALT_BYTES):
            raise Invalid("not a row of a journal", agent=agent_id, seq=seq)
        fixed += _ROW.pack(agents[agent_id], seq, kind, version, low, bool(salt), len(body))
        proofs += link
        proofs += salt
    plain = b"".join((_LENGTH.pack(len(said)), said, fixed, *(row.body for row in rows)))
    deflate = zlib.compressobj(_LEVEL, zdict=_DICTIONARY)
    rest = _LENGTH.pack(len(proofs)) + proofs + deflate.compress(plain) + deflate.flush()
    return MAGIC + bytes((FORMAT_VERSION,)) + _LENGTH.pack(zlib.crc32(rest)) + rest


def unpack(stored: bytes) -> Packed:
    """What was packed. Errors: ValueError saying what is wrong with the bytes."""
    if stored[: len(MAGIC)] != MAGIC:
        msg = "not an object of a journal" if stored else "an empty object"
        raise ValueError(msg)
    try:
        _, version, checksum, proof_bytes = _START.unpack_from(stored)
        if version != FORMAT_VERSION:
            msg = f"unknown version {version} of the format; {FORMAT_VERSION} is known"
            raise ValueError(msg)
        if zlib.crc32(memoryview(stored)[_START.size - _LENGTH.size :]) != checksum:
            msg = "the bytes do not match their checksum"
            raise ValueError(msg)
        proofs = stored[_START.size : _START.size + proof_bytes]
        inflate = zlib.decompressobj(zdict=_DICTIONARY)
        plain = inflate.decompress(memoryview(stored)[_START.size + proof_bytes :])
        if not inflate.eof or inflate.unused_data:
            msg = "the stream does not end where the object ends"
            raise ValueError(msg)
        return _read(plain, proofs)
    except (error, zlib.error, KeyError, TypeError, IndexError, RecursionError) as cause:
        msg = f"malformed: {cause}"
        raise ValueError(msg) from cause


def _read(plain: bytes, proofs: bytes) -> Packed:
    (header_bytes,) = _LENGTH.unpack_from(plain)
    place = _LENGTH.size + header_bytes
    header = json.loads(plain[_LENGTH.size : place])
    if not isinstance(header, dict):
        msg = "the header is no JSON object"
        raise TypeError(msg)
    said = cast("dict[str, object]", header)
    agents, count = cast("list[object]", said.pop("agents")), cast("int", said.pop("rows"))
    names = [agent for agent in agents if isinstance(agent, str)]
    if len(names) != len(agents):
        msg = "the header names an agent that is no text"
        raise TypeError(msg)
    rows: list[Row] = []
    body_at, proof_at = place + count * _ROW.size, 0
    for number in range(count):
        agent, seq, kind, version, low, salted, size = _ROW.unpack_from(plain, place + number * _ROW.size)
        salt_at = proof_at + LINK_BYTES
        link, salt = proofs[proof_at:salt_at], proofs[salt_at : salt_at + SALT_BYTES] if salted else b""
        rows.append(Row(names[agent], seq, kind, version, low, link, salt, plain[body_at : body_at + size]))
        proof_at, body_at = salt_at + len(salt), body_at + size
    if (body_at, proof_at) != (len(plain), len(proofs)):
        msg = "more or fewer bytes than its rows have"
        raise ValueError(msg)
    return Packed(said, rows)
