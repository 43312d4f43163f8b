"""JSON as the documented layouts spell it: indented, readable, bytes as marked base64, times in ISO 8601.

A dictionary of the user's that looks like the marker cannot be told from bytes here: who must be exact keeps the value
another way as well (see `kept_rows.py`).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

_MARKER = "__bytes_encoded__"


def spelled(document: Mapping[str, object], *, indent: int | None = 2) -> bytes:
    """The document as a file. Errors: `ValueError` or `TypeError` for what JSON cannot say."""
    value = encoded(document)
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # A lone surrogate, which UTF-8 cannot say.
        return json.dumps(value, indent=indent, allow_nan=False).encode()


def read(body: bytes) -> dict[str, object]:
    """The document again. NaN and infinities, which others may write, are None.

    Errors: `ValueError` when the bytes are not one JSON object, or what is marked as bytes is not.
    """
    return decoded(parsed(body))


def parsed(body: bytes) -> dict[str, object]:
    """The document as JSON has it: what is marked as bytes is still marked. Errors: `ValueError`."""
    try:
        value = json.loads(body.decode(), parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return cast("dict[str, object]", value)


def encoded(document: Mapping[str, object]) -> dict[str, object]:
    """The document in values that JSON has."""
    return cast("dict[str, object]", _encoded(document))


def decoded(document: Mapping[str, object]) -> dict[str, object]:
    """The document again, from such values. Errors: `ValueError` when what is marked as bytes is not."""
    try:
        value = _decoded(document)
    except (RecursionError, binascii.Error) as error:
        raise ValueError(str(error)) from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return cast("dict[str, object]", value)


def iso(at: float) -> str:
    """Epoch seconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).isoformat()


def zulu(at: float) -> str:
    """The same as others write it: to the millisecond, and a Z behind it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch(text: object) -> float:
    """A time back; 0.0 for what is no such time."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _no_number(name: str) -> None:
    del name


def _encoded(value: object) -> object:
    if isinstance(value, bytes):
        return {_MARKER: True, "data": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key: _encoded(item) for key, item in cast("Mapping[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in cast("list[object]", value)]
    return value


def _decoded(value: object) -> object:
    if isinstance(value, list):
        return [_decoded(item) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    items = cast("dict[str, object]", value)
    if items.get(_MARKER) is True and "data" in items:
        return base64.b64decode(str(items["data"]))
    return {key: _decoded(item) for key, item in items.items()}
