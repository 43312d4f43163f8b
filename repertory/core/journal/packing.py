"""Deflated contents of journals, with a bound for what they inflate to.

Deflate makes one byte of a thousand equal ones, so a planted object of a megabyte could fill the memory of everybody
who reads it, with a correct checksum. What packs even better than the bound is therefore stored as it is.
"""

from __future__ import annotations

import zlib

INFLATED_FREE_BYTES = 64 * 1024 * 1024
"""Up to this size, contents may inflate to any multiple of their stored bytes."""
_RATIO_MAX = 16


def deflated(plain: bytes, dictionary: bytes, level: int, *, raw: bool = False) -> bytes:
    """A stream for `inflated`; `raw` is without zlib's header and checksum, which take six bytes."""
    packed = _deflated(plain, dictionary, level, _wbits(raw))
    return packed if len(plain) <= _inflated_max(packed) else _deflated(plain, dictionary, 0, _wbits(raw))


def inflated(packed: bytes | memoryview, dictionary: bytes, *, raw: bool = False) -> bytes:
    """The plain bytes of a whole stream. Errors: `ValueError`."""
    stream, most = zlib.decompressobj(_wbits(raw), zdict=dictionary), _inflated_max(packed)
    try:
        plain = stream.decompress(packed, most + 1)
    except zlib.error as error:
        msg = f"malformed: {error}"
        raise ValueError(msg) from error
    if len(plain) > most:
        msg = f"it inflates to more than {most} bytes, which nothing of its size does"
        raise ValueError(msg)
    # A stream that was cut still gives bytes, and bytes behind its end belong to nothing.
    if not stream.eof or stream.unused_data:
        msg = "the stream does not end where the object ends"
        raise ValueError(msg)
    return plain


def _deflated(plain: bytes, dictionary: bytes, level: int, wbits: int) -> bytes:
    stream = zlib.compressobj(level, zlib.DEFLATED, wbits, zdict=dictionary)
    return stream.compress(plain) + stream.flush()


def _inflated_max(packed: bytes | memoryview) -> int:
    return max(INFLATED_FREE_BYTES, _RATIO_MAX * len(packed))


def _wbits(raw: bool) -> int:
    return -zlib.MAX_WBITS if raw else zlib.MAX_WBITS
