"""Bodies as they lie in a session database: long ones are packed, which makes the file smaller and its pages fuller.

A packed body is a byte 1 and a raw deflate stream with a preset dictionary of what most records say. No body begins
with that byte otherwise: it is a JSON object, or the digest of an erased content, which is told by the missing salt.
Short bodies stay as they are: unpacking one takes longer than reading the bytes that it saves.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from repertory.core.journal.rows import Row

PACKED_FROM_BYTES = 600
_MARK = b"\x01"
_LEVEL = 3
"""Beyond it a body takes twice the time and becomes one percent smaller."""
_WORTH = 0.9
_DICTIONARY = (
    b'"name":"","description":"","error":"","path":"","url":"","type":"","value":"","data":"","code":"","items":[{"id":"'
    b'"view":{"first_shown":1,"pinned":[[1,{"role":"user","content":[{"text":""}]}]],"replaced":[],"summary":{"role":"user"'
    b',"hidden":[[1,2]],"manager":"NullConversationManager"}"manager":"SummarizingConversationManager","manager_state":{'
    b'{"at":1800000000.1,"tool_use_id":"tooluse_","name":"","idempotency_key":"/default/1/tooluse_","attempt":2}'
    b'{"at":1700000000.1,"tool_use_id":"tooluse_","result":{"toolUseId":"tooluse_","status":"error","content":[{"text":"'
    b'"content":[{"toolResult":{"toolUseId":"tooluse_","status":"success","content":[{"text":"","content":[{"json":{"'
    b'"content":[{"reasoningContent":{"reasoningText":{"text":""}}},{"toolUse":{"toolUseId":"tooluse_","name":"","input":{"'
    b'"}],"metadata":{"usage":{"inputTokens":1,"outputTokens":1,"totalTokens":1},"custom":{"stop_reason":"max_tokens"}}},'
    b'"turn":1,"index":1,"view":{"first_shown":1,"manager":"SlidingWindowConversationManager","manager_state":{'
    b'"removed_message_count":1,"model_call_count":1}}}"turn":1,"index":1,"idempotency_token":"'
    b'{"at":1800000000.1,"message":{"role":"user","content":[{"text":"'
    b'{"at":1700000000.1,"message":{"role":"assistant","content":[{"text":"'
)
"""Part of the format: what was written with it is read with it."""


def packed(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows as they are stored."""
    if all(len(row.body) < PACKED_FROM_BYTES for row in rows):
        return rows
    return [_packed(row) for row in rows]


def unpacked(row: Row) -> Row:
    """A row that was stored, as it was. One that is damaged stays as it is: its link tells."""
    if row[7][:1] != _MARK or not row.salt:
        return row
    stream = zlib.decompressobj(-zlib.MAX_WBITS, zdict=_DICTIONARY)
    try:
        body = stream.decompress(memoryview(row.body)[1:])
    except zlib.error:
        return row
    return row._replace(body=body) if stream.eof and not stream.unused_data else row


def unpack(rows: list[Row]) -> list[Row]:
    """The same for many, in place."""
    for place, row in enumerate(rows):
        if row[7][:1] == _MARK:
            rows[place] = unpacked(row)
    return rows


def _packed(row: Row) -> Row:
    if len(row.body) < PACKED_FROM_BYTES or row.erased:
        return row
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=_DICTIONARY)
    body = b"".join((_MARK, stream.compress(row.body), stream.flush()))
    return row._replace(body=body) if len(body) < len(row.body) * _WORTH else row
