"""Values on the wire: parameters as text or binary, results as binary.

A statement says the type of each parameter by a cast (`$1::bigint[]`), so only the form matters here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from repertory.errors import StoreFailed

TEXT: Final = 0
BINARY: Final = 1


class Encoded(NamedTuple):
    """A parameter as sent."""

    value: bytes | None
    form: int


Value: TypeAlias = "str | int | float | bool | bytes | None"
"""What a result holds, besides lists of these."""
Parameter: TypeAlias = "Value | Encoded"

_NULL = Encoded(None, TEXT)
_size = struct.Struct(">i").pack
_head = struct.Struct(">iiIii").pack
_INT8, _BYTEA, _TEXT, _FLOAT8 = 20, 17, 25, 701


def as_parameter(value: Parameter) -> Encoded:
    match value:
        case Encoded():
            return value
        case None:
            return _NULL
        case bytes():
            return Encoded(value, BINARY)
        case str():
            return Encoded(value.encode(), TEXT)
        case bool():
            return Encoded(b"t" if value else b"f", TEXT)
        case int() | float():
            return Encoded(repr(value).encode(), TEXT)


def int8s(values: Sequence[int]) -> Encoded:
    """A `bigint[]`."""
    count = len(values)
    parts = [0] * (2 * count)
    parts[::2] = [8] * count
    parts[1::2] = values
    return Encoded(_array_head(_INT8, count) + struct.pack(">" + "iq" * count, *parts), BINARY)


def byteas(values: Sequence[bytes]) -> Encoded:
    """A `bytea[]`."""
    return Encoded(_sized(_BYTEA, values), BINARY)


def texts(values: Sequence[str]) -> Encoded:
    """A `text[]`."""
    return Encoded(_sized(_TEXT, [value.encode() for value in values]), BINARY)


def float8s(values: Sequence[float | None]) -> Encoded:
    """A `double precision[]`; None is NULL."""
    parts = [b"\xff\xff\xff\xff" if value is None else struct.pack(">id", 8, value) for value in values]
    has_null = any(value is None for value in values)
    return Encoded(_array_head(_FLOAT8, len(values), has_null=has_null) + b"".join(parts), BINARY)


def _sized(oid: int, values: Sequence[bytes]) -> bytes:
    parts = [_array_head(oid, len(values))]
    for value in values:
        parts += (_size(len(value)), value)
    return b"".join(parts)


def _array_head(oid: int, count: int, *, has_null: bool = False) -> bytes:
    if not count:
        return struct.pack(">iiI", 0, 0, oid)
    return _head(1, int(has_null), oid, count, 1)


def _read_array(one: Callable[[bytes], Value]) -> Callable[[bytes], list[Value]]:
    def read(data: bytes) -> list[Value]:
        dimensions = struct.unpack_from(">i", data)[0]
        if not dimensions:
            return []
        count, place = struct.unpack_from(">i", data, 12)[0], 20
        values: list[Value] = []
        for _ in range(count):
            size = struct.unpack_from(">i", data, place)[0]
            place += 4
            values.append(None if size < 0 else one(data[place : place + size]))
            place += max(size, 0)
        return values

    return read


def _read_bool(data: bytes) -> bool:
    return data == b"\x01"


def _read_int(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _read_text(data: bytes) -> str:
    return data.decode(errors="replace")


def _read_float(data: bytes) -> float:
    return float(struct.unpack(">d", data)[0])


def _read_bytes(data: bytes) -> bytes:
    return data


Reader: TypeAlias = "Callable[[bytes], Value | list[Value]]"

_READERS: Final[dict[int, Reader]] = {
    16: _read_bool,
    17: _read_bytes,
    19: _read_text,
    20: _read_int,
    21: _read_int,
    23: _read_int,
    25: _read_text,
    26: _read_int,
    701: _read_float,
    1009: _read_array(_read_text),
    1016: _read_array(_read_int),
    1043: _read_text,
    2278: _read_text,
}


def reader_of(oid: int) -> Reader:
    """Reads a result's column of this type. Errors: `StoreFailed` for a type that we do not store."""
    reader = _READERS.get(oid)
    if reader is None:
        raise StoreFailed("a column has another type than the one that it was made with", type=oid)
    return reader
