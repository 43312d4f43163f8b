"""What an owner of sessions is called: a name of its own, which says where it runs to whoever meets it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

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
