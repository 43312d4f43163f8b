"""Bytes in JSON, and JSON as the documented layouts have it: indented, bytes as marked base64, times in ISO 8601.

Base64 is written and read here for every layout that JSON stands in, ours and those of services.

Other programs decode every dictionary whose `__bytes_encoded__` is exactly `true`, and fail when its data is not
base64. So a user's dictionary that looks like that is written with `1.0` in the place of `true`: equal, but never
decoded; reading restores `true`. Such a dictionary from another program becomes bytes if it decodes, else it stays.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import NoReturn, cast

import msgspec

MARKER, DATA = "__bytes_encoded__", "data"
"""The keys of a dictionary that stands for bytes."""
ESCAPED = 1.0
"""Stands for the `true` of the marker in a user's dictionary that is not bytes."""
_MARK = MARKER.encode()
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_PLAIN = frozenset({str, int, float, bool, type(None)})
"""The types whose values stand in a file unchanged."""


def to_base64(data: bytes | bytearray) -> str:
    return b64encode(data).decode()


def marked_bytes(data: bytes | bytearray) -> dict[str, object]:
    """Bytes as JSON values."""
    return {MARKER: True, DATA: to_base64(data)}


def from_base64(text: str) -> bytes:
    """The bytes. Errors: `ValueError` for a text that `to_base64` has not made."""
    return b64decode(text, validate=True)


def any_base64(text: object) -> bytes | None:
    """The bytes of base64 in either alphabet, with or without padding; None for anything else."""
    if not isinstance(text, str):
        return None
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return from_base64(plain + "=" * (-len(plain) % 4))
    except ValueError:
        return None


def strict_json(text: str | bytes) -> object:
    """The value. Errors: `ValueError`, also for NaN and infinities, and for too deep nesting."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities; an argument of readers of JSON."""
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def to_file(document: Mapping[str, object], *, indent: int | None = 2) -> bytes:
    """The document as a file. Errors: `ValueError` or `TypeError` for values that are not JSON."""
    try:
        text = _ENCODE(document)
    except TypeError:  # There are bytes in it.
        text = MARKER
    return json_file(encoded(document), indent=indent) if MARKER in text else _laid_out(text, document, indent)


def json_file(document: Mapping[str, object], *, indent: int | None = 2) -> bytes:
    """The file of JSON values, such as `encoded` or `parsed` return. Encoding them again would escape our own
    marks.
    """
    return _laid_out(_ENCODE(document), document, indent)


def digest_of_document(document: Mapping[str, object]) -> str:
    """The digest of JSON values; the order of keys does not matter."""
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


def read(body: bytes) -> dict[str, object]:
    """The document from a file. NaN and infinities, which other programs may write, become None.

    Errors: `ValueError` when the bytes are not one JSON object.
    """
    value = parsed(body)
    # The marker may be spelled with escapes.
    return decoded(value) if _MARK in body or b"\\u" in body else value


def parsed(body: bytes) -> dict[str, object]:
    """The document in JSON values: bytes stay marked. Errors: `ValueError`."""
    try:
        # Python programs write NaN into their files; one of them must not make a session unreadable.
        value = json.loads(body.decode(), parse_constant=lambda _: None)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return cast("dict[str, object]", value)


def encoded(document: Mapping[str, object]) -> dict[str, object]:
    """The document in JSON values, bytes marked. Errors: `ValueError` for too deep nesting."""
    return cast("dict[str, object]", encoded_value(document))


def encoded_value(value: object) -> object:
    """Any value as JSON, bytes marked. Errors: `ValueError` for too deep nesting."""
    try:
        return _encoded(value)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def decoded(document: Mapping[str, object]) -> dict[str, object]:
    """The document from JSON values. Errors: `ValueError` for too deep nesting."""
    value = decoded_value(document)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return cast("dict[str, object]", value)


def decoded_value(value: object) -> object:
    """Any value from JSON. Errors: `ValueError` for too deep nesting."""
    try:
        return _decoded(value)
    except RecursionError as error:
        raise ValueError(str(error)) from error


_FIRST, _LAST = (datetime(year, month, day, tzinfo=UTC).timestamp() for year, month, day in ((1, 1, 1), (9999, 12, 31)))


def iso(at: float) -> str:
    """Epoch seconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat()


def zulu(at: float) -> str:
    """Epoch seconds as ISO 8601 in UTC, to the millisecond and with a Z at the end, as other programs write it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch(text: object) -> float:
    """A time as epoch seconds, within the calendar of `iso`; 0.0 for anything else."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return 0.0
    at = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    # `iso` fails outside of Python's calendar, and these times come from anybody.
    return min(max(at, _FIRST), _LAST)


def _laid_out(text: str, document: Mapping[str, object], indent: int | None) -> bytes:
    """The JSON of a document as `json` indents it, in a quarter of its time: it indents in Python."""
    try:
        body = text.encode()
    except UnicodeEncodeError:  # A lone surrogate has no UTF-8 form.
        return json.dumps(document, indent=indent, allow_nan=False).encode()
    return body if indent is None else msgspec.json.format(body, indent=indent)


def _encoded(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bytes | bytearray):
        return marked_bytes(value)
    if isinstance(value, Mapping):
        items = {key: _encoded(item) for key, item in cast("Mapping[str, object]", value).items()}
        return {**items, MARKER: ESCAPED} if _looks_marked(items) else items
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in cast("list[object]", value)]
    return value


def _decoded(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        return [_decoded(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, object]", value)
    if _looks_marked(items):
        found = _bytes_in(items)
        if found is not None:
            return found
    made = {key: _decoded(item) for key, item in items.items()}
    if DATA in made and isinstance(made.get(MARKER), float) and made[MARKER] == ESCAPED:
        made[MARKER] = True
    return made


def _looks_marked(items: Mapping[str, object]) -> bool:
    """True if other programs decode this as bytes."""
    return items.get(MARKER) is True and DATA in items


def _bytes_in(items: Mapping[str, object]) -> bytes | None:
    """The bytes of a marked dictionary; None when they do not decode, or it has further keys."""
    text = items[DATA]
    # With more keys it is somebody's data: as bytes, the others would be lost.
    if len(items) > 2 or not isinstance(text, str):
        return None
    try:
        # Other programs break base64 into lines.
        return from_base64("".join(text.split()))
    except ValueError:
        return None
