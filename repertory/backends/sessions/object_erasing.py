"""Destroying contents: every object that holds one of them is replaced by one that does not.

The commit that asked for it names the rows, so whoever opens the session after a crash finishes the work, and nobody
shows the contents meanwhile.
"""

from __future__ import annotations

from functools import partial

from repertory.backends.ports import ObjectInfo, Update
from repertory.backends.sessions.object_format import pack
from repertory.backends.sessions.object_head import read_object
from repertory.backends.sessions.object_keys import number_in
from repertory.backends.sessions.object_ownership import OwnedSession
from repertory.backends.sessions.object_requests import side_by_side
from repertory.backends.sessions.object_window import without
from repertory.errors import PreconditionFailed

_TRIES_MAX = 8


async def finish_erasing(session: OwnedSession) -> None:
    """Destroy what is to be erased wherever it stands. Merging must not run.

    Errors: `LeaseLost`, `CorruptJournal`, those of the object store; the work is finished later then.
    """
    erasing = session.erasing
    keys = session.keys
    found = await session.requests.list(f"{keys.folder}/")
    holders = [info for info in found if number_in(info.key) is not None]
    await side_by_side([partial(_erase_in, session, info, frozenset(erasing)) for info in holders])
    windows = [info.key for info in found if info.key.startswith(keys.windows)]
    async with session.head_lock:
        session.note_erased(erasing)
        await session.write_head(fresh=True)
    current = None if session.head.window is None else keys.window(session.head.window)
    await session.requests.delete_all([key for key in windows if key != current])


async def _erase_in(session: OwnedSession, info: ObjectInfo, erasing: frozenset[tuple[str, int]]) -> None:
    key = info.key
    kind = "chunk" if key.startswith(session.keys.chunks) else "segment"
    for _ in range(_TRIES_MAX):
        found = await session.requests.find(key)
        if found is None:
            return
        header, rows = read_object(found.body, kind, session.lease.session_id, key)
        left = without(rows, erasing)
        if left == rows:
            return
        try:
            await session.requests.put(key, pack(header, left), Update(found.version))
        except PreconditionFailed:
            continue
        return
