"""Valid names for sessions, agents, orchestrators, snapshots, stores and objects, and the names of session owners.
Every store checks with these functions, so all agree.

Valid ids can be file names and object keys on every system that the stores support.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from repertory.errors import Invalid

ID_BYTES_MAX = 255
"""The longest file name of common file systems, in bytes of UTF-8."""
KEY_BYTES_MAX = 1024
"""The longest S3 key, in bytes of UTF-8."""
RESERVED = ".repertory-"
"""The prefix of files that stores create for themselves. No part of a key begins with it."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_id(value: object, what: str) -> str:
    """The same id, if valid. `what` names it in the error, for example `session id`.

    Errors: `Invalid` (a ValueError) with the id and the reason. An invalid id is never repaired: that would make
    another id.
    """
    if not isinstance(value, str):
        raise Invalid(f"{_article(what)} {what} is a string", got=type(value).__name__)
    reason = _fault(value)
    if reason is not None:
        raise Invalid(f"{_article(what)} {what} {reason}", got=value)
    return value


def check_key(key: object) -> str:
    """The same object key, if valid: ids with slashes between, such as `session_1/agents/agent_1/agent.json`.

    Errors: `Invalid` with the key and the reason.
    """
    if not isinstance(key, str):
        raise Invalid("an object key is a string", got=type(key).__name__)
    reason = _key_fault(key)
    if reason is not None:
        raise Invalid(f"an object key {reason}", got=key)
    return key


def is_key(key: str) -> bool:
    """True if `check_key` accepts it."""
    return _key_fault(key) is None


def check_prefix(prefix: object) -> str:
    """The same key prefix, if valid: empty, or a key with or without a trailing slash.

    Errors: `Invalid` with the prefix and the reason.
    """
    if prefix != "":
        check_key(prefix.removesuffix("/") if isinstance(prefix, str) else prefix)
    return str(prefix)


def prefix_end(prefix: str) -> str:
    """A text that is greater than every id with this prefix, by code points, and than no other id that is."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return "\U0010ffff" * ID_BYTES_MAX
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # No text has surrogates.


def check_kms_key(kms_key_id: object) -> None:
    """Errors: `Invalid` for anything but the id of a KMS key, or None for the bucket's default encryption."""
    if kms_key_id is not None and not (isinstance(kms_key_id, str) and kms_key_id.strip()):
        raise Invalid("kms_key_id is the id, the ARN or the alias of a KMS key, or None", got=kms_key_id)


def _key_fault(key: str) -> str | None:
    parts = key.split("/")
    for part in parts:
        reason = _fault(part)
        if reason is not None:
            return f"consists of parts with slashes between, each of which {reason}" if len(parts) > 1 else reason
        if part.startswith(RESERVED):
            return f"has no part that begins with {RESERVED!r}"
    return f"takes at most {KEY_BYTES_MAX} bytes of UTF-8" if len(key.encode()) > KEY_BYTES_MAX else None


def _fault(value: str) -> str | None:
    if not value:
        return "is not empty"
    if value in (".", ".."):
        return "is not '.' or '..'"
    if "/" in value or "\\" in value:
        return "is one name: an id cannot contain path separators"
    if _CONTROL.search(value):
        return "has no control characters"
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError:
        return "has no lone surrogates"
    return f"takes at most {ID_BYTES_MAX} bytes of UTF-8" if size_bytes > ID_BYTES_MAX else None


def _article(what: str) -> str:
    return "an" if what[0] in "aeiou" else "a"


# The name of a session owner: unique, and readable as the place where the owner runs.

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9-]")
_NAME = re.compile(r"[0-9a-f]+_([A-Za-z0-9-]*)_([0-9]+)_([0-9]+)")
_HOST_MAX = 40


def owner_name(chance: bytes, *, host: str, pid: int, at: float) -> str:
    """A unique name. `at`: when the owner started, in epoch seconds."""
    return f"{chance.hex()}_{_NOT_IN_NAMES.sub('-', host)[:_HOST_MAX]}_{pid}_{int(at)}"


def whereabouts(owner: object) -> dict[str, object]:
    """Host, pid and start (UTC) from an owner's name; empty for names of another form."""
    found = _NAME.fullmatch(owner) if isinstance(owner, str) else None
    if found is None:
        return {}
    since = datetime.fromtimestamp(int(found[3]), UTC).isoformat(timespec="seconds")
    return {"host": found[1], "pid": int(found[2]), "since": since}
