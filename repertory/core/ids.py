"""What a session, agent, orchestrator, snapshot, store or object may be called, and how an owner of sessions names
itself. Every store asks here, so all of them agree.

The rule keeps ids usable as file names and object keys on every system that the stores know.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from repertory.errors import Invalid

ID_BYTES_MAX = 255
"""The longest file name that common file systems take, in bytes of UTF-8."""
KEY_BYTES_MAX = 1024
"""The longest key that S3 takes, in bytes of UTF-8."""
RESERVED = ".repertory-"
"""How the names begin that stores give to files of their own. No part of a key begins so."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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


def check_key(key: object) -> str:
    """The same object key, known to be usable: ids with slashes between, such as `session_1/agents/agent_1/agent.json`.

    Errors: `Invalid` saying which key and why.
    """
    if not isinstance(key, str):
        raise Invalid("an object key is a string", got=type(key).__name__)
    reason = _key_fault(key)
    if reason is not None:
        raise Invalid(f"an object key {reason}", got=key)
    return key


def is_key(key: str) -> bool:
    """Whether `check_key` would take it."""
    return _key_fault(key) is None


def check_prefix(prefix: object) -> str:
    """The same beginning of keys, known to be usable: empty, or a key with or without a slash behind it.

    Errors: `Invalid` saying which prefix and why.
    """
    if prefix != "":
        check_key(prefix.removesuffix("/") if isinstance(prefix, str) else prefix)
    return str(prefix)


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
        return "has no path separators"
    if _CONTROL.search(value):
        return "has no control characters"
    try:
        size_bytes = len(value.encode())
    except UnicodeEncodeError:
        return "has no lone surrogates"
    return f"takes at most {ID_BYTES_MAX} bytes of UTF-8" if size_bytes > ID_BYTES_MAX else None


def _article(what: str) -> str:
    return "an" if what[0] in "aeiou" else "a"


# What an owner of sessions is called: a name of its own, which says where it runs to whoever meets it.

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9-]")
_NAME = re.compile(r"[0-9a-f]+_([A-Za-z0-9-]*)_([0-9]+)_([0-9]+)")
_HOST_MAX = 40


def owner_name(chance: bytes, *, host: str, pid: int, at: float) -> str:
    """A name that no other owner has. `at`: when it came, in epoch seconds."""
    return f"{chance.hex()}_{_NOT_IN_NAMES.sub('-', host)[:_HOST_MAX]}_{pid}_{int(at)}"


def whereabouts(owner: object) -> dict[str, object]:
    """Host, pid and since when (UTC), out of the name; nothing for owners that are called otherwise."""
    found = _NAME.fullmatch(owner) if isinstance(owner, str) else None
    if found is None:
        return {}
    since = datetime.fromtimestamp(int(found[3]), UTC).isoformat(timespec="seconds")
    return {"host": found[1], "pid": int(found[2]), "since": since}
