"""Removing the objects of a deleted session."""

from __future__ import annotations

from repertory.backends.sessions.object_format import unpack
from repertory.backends.sessions.object_keys import SessionKeys, number_in
from repertory.backends.sessions.object_requests import Requests

_FENCE_BYTES_MAX = 1024
"""A fence holds two ids and three numbers: it is never larger."""


async def remove_session(requests: Requests, keys: SessionKeys, up_to: int | None = None) -> bool:
    """Remove everything but the head, which says that the session is deleted, and fences, which keep former owners out.

    Commits after `up_to` stay. Whether anything was removed.
    """
    found = [info for info in await requests.list(f"{keys.folder}/") if info.key != keys.head]
    if up_to is not None:
        found = [info for info in found if (number_in(info.key) or 0) <= up_to]
    small = [info.key for info in found if info.key.startswith(keys.segments) and info.size_bytes <= _FENCE_BYTES_MAX]
    stored = await requests.find_all(small)
    fences = {key for key, item in zip(small, stored, strict=True) if item is not None and _is_fence(item.body)}
    gone = [info.key for info in found if info.key not in fences]
    if gone:
        await requests.delete_all(gone)
    return bool(gone)


def _is_fence(body: bytes) -> bool:
    try:
        header, rows = unpack(body)
    except ValueError:
        return False
    return header.get("kind") == "segment" and not rows and not header.get("erasing")
