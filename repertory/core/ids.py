"""What a session, agent, orchestrator, snapshot or store may be called. Every store asks here, so all of them agree.

The rule keeps ids usable as file names and object keys on every system that the stores know.
"""

from __future__ import annotations

from repertory.errors import Invalid

ID_BYTES_MAX = 255
"""The longest file name that common file systems take, in bytes of UTF-8."""


def check_id(value: object, what: str) -> str:
    """The same id, known to be usable. `what` names it in the error, for example `session id`.

    Errors: `Invalid` (a ValueError) saying which id and why. Nothing is ever mended: another spelling would be another
    id.
    """
    if not isinstance(value, str):
        raise Invalid(f"{_article(what)} {what} is a string", got=type(value).__name__)
    reason = _fault(value)
    if reason is not None:
        raise Invalid(f"{_article(what)} {what} {reason}", got=value)
    return value


def _fault(value: str) -> str | None:
    if not value:
        return "is not empty"
    if value in (".", ".."):
        return "is not '.' or '..'"
    if "/" in value or "\\" in value:
        return "has no path separators"
    if any(_is_control(character) for character in value):
        return "has no control characters"
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError:
        return "has no lone surrogates"
    return f"takes at most {ID_BYTES_MAX} bytes of UTF-8" if size_bytes > ID_BYTES_MAX else None


def _is_control(character: str) -> bool:
    code = ord(character)
    return code < 0x20 or 0x7F <= code < 0xA0


def _article(what: str) -> str:
    return "an" if what[0] in "aeiou" else "a"
