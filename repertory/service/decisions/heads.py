"""Heads of HTTP requests: raw, and as a server has parsed them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_LINES_MAX: Final = 128
_END: Final = re.compile(rb"\n\r?\n")
_ODD: Final = re.compile(rb"(?<!\r)\n|\r(?!\n)|\n[ \t]")
"""A line that ends by half of CRLF, or goes on in the next one."""
_ONCE: Final = (b"host", b"authorization", b"x-session-id", b"idempotency-key")


def refused_head(raw: bytes) -> int:
    """The status by which a head is refused before it is parsed: 400 if a proxy may read its lines as others, 431 if it
    has too many of them; 0 for any other, and while it has not come whole.
    """
    if (end := _END.search(raw)) is None:
        return 0
    if raw.count(b"\n", 0, end.end()) > _LINES_MAX:
        return 431
    return 400 if _ODD.search(raw, 0, end.end()) else 0


def is_ambiguous(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True if two servers may read the request as two different ones: it says twice how long it is, whom it is for, who
    asks, or what it goes on with.

    Args:
        headers: The names, in lower case, and the values.
    """
    names = [name for name, _ in headers]
    return any(names.count(name) > 1 for name in _ONCE) or (
        b"content-length" in names and b"transfer-encoding" in names
    )
