"""JSON for record bodies: compact, exact, and able to hold raw bytes that user data cannot be mistaken for.

Bytes become `{"$bytes": "<base64>"}`. A user's dictionary key that reads like that marker (any number of dollar signs,
then `bytes`) gets one more dollar sign when written and loses it when read. Data without such keys and without bytes,
which is nearly all of it, is plain JSON and costs nothing extra.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import NoReturn, cast

from repertory.core.messages import Json
from repertory.errors import Invalid

_MARKER = "$bytes"
_AT_ONCE_BYTES = 1024 * 1024
_MARK = b'$bytes"'
"""A body without these bytes needs no unescaping. (A body with them may not need it either: a text can end so.)"""


def dump(value: object) -> bytes:
    """UTF-8 JSON without spaces. Dictionary keys must be strings.

    Errors: `Invalid` for NaN, infinities, values that are neither JSON nor bytes, and too deep nesting.
    """
    try:
        text = _ENCODE(value)
        if _MARKER in text:
            text = _ENCODE(_escaped(value))
        try:
            return text.encode()
        except UnicodeEncodeError:
            return _ENCODE_ASCII(_escaped(value)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid("a record holds JSON values and bytes only", cause=str(error)) from error


def load(body: bytes) -> Json:
    """The value that was dumped; tuples come back as lists.

    Errors: ValueError when the bytes are not JSON, hold a constant like NaN, or continue after the value.
    """
    text = body.decode()
    try:
        value, end = _READ(text)
        said = _unescaped(value) if _MARK in body else value
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if end != len(text):
        raise ValueError("bytes after the JSON value")
    return cast("Json", said)


def load_all(bodies: Sequence[bytes]) -> list[Json] | None:
    """Load many bodies in one parse, a third faster than one by one; None when they must be loaded one by one.

    Only for bodies that `dump` made, such as those of verified rows. Parsing JSON holds the interpreter lock, so large
    inputs are parsed a megabyte at a time.
    """
    if sum(map(len, bodies)) <= _AT_ONCE_BYTES:
        return _load_at_once(bodies)
    values: list[Json] = []
    first = size = 0
    for place, body in enumerate(bodies, 1):
        size += len(body)
        if size >= _AT_ONCE_BYTES or place == len(bodies):
            some = _load_at_once(bodies[first:place])
            if some is None:
                return None
            values += some
            first, size = place, 0
    return values


def _load_at_once(bodies: Sequence[bytes]) -> list[Json] | None:
    joined = b"[%b]" % b",".join(bodies)
    if _MARK in joined:
        return None
    try:
        values = load(joined)
    except ValueError:
        return None
    return values if isinstance(values, list) and len(values) == len(bodies) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bytes_as_dict(value: object) -> dict[str, str]:
    if isinstance(value, bytes | bytearray):
        return {_MARKER: base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} is not JSON")


def _encoder(*, ascii_only: bool) -> Callable[[object], str]:
    return json.JSONEncoder(
        ensure_ascii=ascii_only,
        check_circular=False,
        allow_nan=False,
        separators=(",", ":"),
        default=_bytes_as_dict,
    ).encode


_ENCODE = _encoder(ascii_only=False)
_ENCODE_ASCII = _encoder(ascii_only=True)
_READ = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def _is_marker(key: str) -> bool:
    return key.endswith(_MARKER) and not key[: -len(_MARKER)].strip("$")


def _escaped(value: object) -> object:
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {_escaped_key(key): _escaped(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in cast("list[object]", value)]
    return value


def _escaped_key(key: object) -> object:
    return f"${key}" if isinstance(key, str) and _is_marker(key) else key


def _unescaped(value: object) -> object:
    if isinstance(value, list):
        return [_unescaped(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, object]", value)
    if _MARKER in items:
        return _bytes_of(items)
    return {(key[1:] if _is_marker(key) else key): _unescaped(item) for key, item in items.items()}


def _bytes_of(items: dict[str, object]) -> bytes:
    encoded = items[_MARKER]
    if len(items) != 1 or not isinstance(encoded, str):
        raise ValueError(f"malformed {_MARKER}")
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(f"malformed {_MARKER}") from error
