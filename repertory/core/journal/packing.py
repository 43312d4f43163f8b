"""Deflated contents of journals, with a bound for what they inflate to.

Deflate makes one byte of a thousand equal ones: a planted megabyte with a correct checksum could fill the memory of
everybody who reads it. What packs even better than the bound is therefore stored as it is.
"""

from __future__ import annotations

import zlib

INFLATED_FREE_BYTES = 64 * 1024 * 1024
"""Up to this size, contents may inflate to any multiple of their stored bytes."""
_RATIO_MAX = 16
RAW = -zlib.MAX_WBITS
"""The window of a stream without zlib's header and checksum, which take six bytes."""


def deflated(plain: bytes, dictionary: bytes, level: int, window: int = zlib.MAX_WBITS) -> bytes:
    """A stream for `inflated`."""
    stream = zlib.compressobj(level, zlib.DEFLATED, window, zdict=dictionary)
    packed = stream.compress(plain) + stream.flush()
    return packed if len(plain) <= _inflated_max(packed) else deflated(plain, dictionary, 0, window)


def inflated(packed: bytes | memoryview, dictionary: bytes, window: int = zlib.MAX_WBITS) -> bytes:
    """The plain bytes of a whole stream. Errors: `ValueError`."""
    stream = zlib.decompressobj(window, zdict=dictionary)
    try:
        plain = stream.decompress(packed, _inflated_max(packed) + 1)
    except zlib.error as error:
        msg = f"malformed: {error}"
        raise ValueError(msg) from error
    if len(plain) > _inflated_max(packed):
        msg = f"{len(packed)} bytes inflate to more than {_inflated_max(packed)}, as none that were stored do"
        raise ValueError(msg)
    # A stream that was cut still gives bytes, and bytes behind its end belong to nothing.
    if not stream.eof or stream.unused_data:
        msg = "the stream does not end where the object ends"
        raise ValueError(msg)
    return plain


def _inflated_max(packed: bytes | memoryview) -> int:
    return max(INFLATED_FREE_BYTES, _RATIO_MAX * len(packed))
