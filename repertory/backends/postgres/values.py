"""Values on the wire: parameters as text or binary, results as binary.

A statement says the type of each parameter by a cast (`$1::bigint[]`), so only the form matters here.
"""

from __future__ import annotations

import struct
from array import array
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
"""A value in a result, besides lists of these."""
Parameter: TypeAlias = "Value | Encoded"

_NULL = Encoded(None, TEXT)
_size = struct.Struct(">i").pack
_NONE: Final = b"\xff\xff\xff\xff"
_head = struct.Struct(">iiIii").pack
_INT8, _BYTEA, _TEXT, _FLOAT4, _FLOAT8 = 20, 17, 25, 700, 701


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


def int8s(values: Sequence[int | None]) -> Encoded:
    """A `bigint[]`; None is NULL."""
    count = len(values)
    if None in values:
        sized = [_NONE if value is None else struct.pack(">iq", 8, value) for value in values]
        return Encoded(_array_head(_INT8, count, has_null=True) + b"".join(sized), BINARY)
    # One `pack` for all: a commit of fifty sessions sends thousands of numbers.
    parts: list[int | None] = [8] * (2 * count)
    parts[1::2] = values
    return Encoded(_array_head(_INT8, count) + struct.pack(">" + "iq" * count, *parts), BINARY)


def byteas(values: Sequence[bytes | None]) -> Encoded:
    """A `bytea[]`; None is NULL."""
    return Encoded(_sized(_BYTEA, values), BINARY)


def texts(values: Sequence[str | None]) -> Encoded:
    """A `text[]`; None is NULL."""
    return Encoded(_sized(_TEXT, [None if value is None else value.encode() for value in values]), BINARY)


def float8s(values: Sequence[float | None]) -> Encoded:
    """A `double precision[]`; None is NULL."""
    parts = [_NONE if value is None else struct.pack(">id", 8, value) for value in values]
    has_null = any(value is None for value in values)
    return Encoded(_array_head(_FLOAT8, len(values), has_null=has_null) + b"".join(parts), BINARY)


def float4s(values: bytes) -> Encoded:
    """A `real[]` of numbers that lie one after the other as this machine has them. One is read as `float4_bytes`."""
    numbers = array("f", values)
    parts: list[float] = [4] * (2 * len(numbers))
    parts[1::2] = numbers
    packed = struct.pack(">" + "if" * len(numbers), *parts)
    return Encoded(_array_head(_FLOAT4, len(numbers)) + packed, BINARY)


def float4_bytes(data: bytes) -> bytes:
    """The numbers of a `real[]` as it is read, one after the other as this machine has them."""
    if len(data) <= 20:
        return b""
    return array("f", struct.unpack_from(">" + "if" * ((len(data) - 20) // 8), data, 20)[1::2]).tobytes()


def _sized(oid: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_array_head(oid, len(values), has_null=None in values)]
    for value in values:
        parts += (_NONE,) if value is None else (_size(len(value)), value)
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
        count, offset = struct.unpack_from(">i", data, 12)[0], 20
        values: list[Value] = []
        for _ in range(count):
            size = struct.unpack_from(">i", data, offset)[0]
            offset += 4
            values.append(None if size < 0 else one(data[offset : offset + size]))
            offset += max(size, 0)
        return values

    return read


def _read_int8s(data: bytes) -> list[Value]:
    """A `bigint[]`: of thousands of numbers, so they are read together where none is NULL."""
    dimensions, has_null = struct.unpack_from(">ii", data)
    if not dimensions:
        return []
    if has_null:
        return _read_array(_read_int)(data)
    count = struct.unpack_from(">i", data, 12)[0]
    return list(struct.unpack_from(">" + "iq" * count, data, 20)[1::2])


def _read_bool(data: bytes) -> bool:
    return data == b"\x01"


def _read_int(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _read_text(data: bytes) -> str:
    # A database that was restored with a wrong encoding must not keep the other sessions from being listed.
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
    1016: _read_int8s,
    1021: _read_bytes,
    1043: _read_text,
    2278: _read_text,
}


def reader_of(oid: int) -> Reader:
    """Reads a result's column of this type. Errors: `StoreFailed` for a type that we do not store."""
    reader = _READERS.get(oid)
    if reader is None:
        raise StoreFailed("a column has another type than it was made with", type=oid)
    return reader
