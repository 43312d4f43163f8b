"""The bytes of a snapshot in a storage: one line that proves the rest, then the rest.

{"bytes": N, "format": "repertory-snapshot", "serializer": NAME, "sha256": DIGEST, "version": 1}
N bytes: what the serializer made of the snapshot; without one, its JSON
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import cast

from repertory.errors import SnapshotException

FORMAT = "repertory-snapshot"
VERSION = 1


def with_proof(body: bytes, serializer: str | None) -> bytes:
    """The bytes with their line. `serializer`: the name of what made them; None for JSON."""
    head = {
        "bytes": len(body),
        "format": FORMAT,
        "serializer": serializer,
        "sha256": sha256(body).hexdigest(),
        "version": VERSION,
    }
    return json.dumps(head).encode() + b"\n" + body


def proved(data: bytes, serializer: str | None) -> bytes:
    """The bytes behind the line; without a serializer also plain JSON, such as `json.dump` writes, as it is.

    Errors: `SnapshotException` for bytes that were changed or truncated, of another version or serializer.
    """
    line, _, body = data.partition(b"\n")
    head = json_in(line)
    if head.get("format") != FORMAT:
        if serializer is not None or not json_in(data):
            raise SnapshotException("this is no stored snapshot, or its first line was changed")
        return data
    if head.get("version") != VERSION:
        raise SnapshotException("Unsupported version of a stored snapshot", got=head.get("version"), known=VERSION)
    if head.get("bytes") != len(body):
        raise SnapshotException("the stored snapshot was truncated", bytes=len(body), expected=head.get("bytes"))
    if head.get("sha256") != sha256(body).hexdigest():
        raise SnapshotException("the stored snapshot was changed: its digest does not fit")
    used = head.get("serializer")
    if used != serializer:
        raise SnapshotException("the snapshot was stored with another serializer", used=used, given=serializer)
    return body


def json_in(text: bytes) -> Mapping[str, object]:
    """A JSON object; an empty one for anything else."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, object]", found) if isinstance(found, dict) else {}
