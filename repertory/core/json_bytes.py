"""JSON as the documented layouts have it: indented, bytes as marked base64, times in ISO 8601.

Other programs decode every dictionary whose `__bytes_encoded__` is exactly `true`, and fail when its data is not
base64. So a user's dictionary that looks like that is written with `1.0` in the place of `true`: equal, but never
decoded; reading restores `true`. Such a dictionary from another program becomes bytes if it decodes, else it stays.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import cast

import msgspec

from repertory.core.json_fields import DATA, ESCAPED, MARKER, marked_bytes

_MARK = MARKER.encode()
_PLAIN = frozenset({str, int, float, bool, type(None)})
"""The types whose values stand in a file unchanged."""


def to_file(document: Mapping[str, object], *, indent: int | None = 2) -> bytes:
    """The document as a file. Errors: `ValueError` or `TypeError` for values that are not JSON."""
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    except TypeError:  # There are bytes in it.
        text = MARKER
    return json_file(encoded(document), indent=indent) if MARKER in text else _laid_out(text, document, indent)


def json_file(document: Mapping[str, object], *, indent: int | None = 2) -> bytes:
    """The file of JSON values, such as `encoded` or `parsed` return. Encoding them again would escape our own
    marks.
    """
    return _laid_out(json.dumps(document, ensure_ascii=False, allow_nan=False), document, indent)


def digest_of_document(document: Mapping[str, object]) -> str:
    """The digest of JSON values; the order of keys does not matter."""
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


def read(body: bytes) -> dict[str, object]:
    """The document from a file. NaN and infinities, which other programs may write, become None.

    Errors: `ValueError` when the bytes are not one JSON object.
    """
    value = parsed(body)
    return decoded(value) if _MARK in body or b"\\u" in body else value


def parsed(body: bytes) -> dict[str, object]:
    """The document in JSON values: bytes stay marked. Errors: `ValueError`."""
    try:
        value = json.loads(body.decode(), parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return cast("dict[str, object]", value)


def encoded(document: Mapping[str, object]) -> dict[str, object]:
    """The document in JSON values, bytes marked. Errors: `ValueError` for too deep nesting."""
    try:
        return cast("dict[str, object]", _encoded(document))
    except RecursionError as error:
        raise ValueError(str(error)) from error


def decoded(document: Mapping[str, object]) -> dict[str, object]:
    """The document from JSON values. Errors: `ValueError` for too deep nesting."""
    try:
        value = _decoded(document)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return cast("dict[str, object]", value)


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
    return min(max(at, _FIRST), _LAST)


def _laid_out(text: str, document: Mapping[str, object], indent: int | None) -> bytes:
    """The JSON of a document as `json` indents it, in a quarter of its time: it indents in Python."""
    try:
        body = text.encode()
    except UnicodeEncodeError:  # A lone surrogate has no UTF-8 form.
        return json.dumps(document, indent=indent, allow_nan=False).encode()
    return body if indent is None else msgspec.json.format(body, indent=indent)


def _no_number(name: str) -> None:
    del name


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
    if len(items) > 2 or not isinstance(text, str):
        return None
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return None
