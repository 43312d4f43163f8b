"""Heads of HTTP requests, as a server has parsed them."""

from __future__ import annotations

from collections.abc import Iterable


def is_ambiguous(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True if two servers may read the request as two different ones: it says twice how long it is, or whom it is for.

    Args:
        headers: The names, in lower case, and the values.
    """
    names = [name for name, _ in headers if name in (b"content-length", b"host", b"transfer-encoding")]
    return names.count(b"host") > 1 or (b"content-length" in names and b"transfer-encoding" in names)
