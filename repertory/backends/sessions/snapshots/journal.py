"""The journals of sessions with snapshots, each below its session's own folder, `<session>/journal/...`.

Earlier releases kept them at an older place, `journals/<session>/...`. The opener of such a session moves it first:

1. own it at the older place, as any owner would, so that no other owner writes there;
2. copy everything but the head;
3. replace the head there by one that names the new folder, on condition that it is still the owner's: from here on
   every owner opens the session at its new place, and releases that do not know that field refuse it;
4. put the head at the new place, which says that some of the session may be left at the older one;
5. remove what is left there; then the next owner's head no longer says so.

After a crash at any step, the next opening continues the move. A session is opened at the new place as soon as a head
is there, and only then.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace

from repertory.backends.ports import Condition, Create, Inspection, SessionInfo, SessionStore, Update
from repertory.backends.sessions.journal.format import (
    BESIDE_SNAPSHOTS,
    JOURNALS,
    ROOT,
    HeadObject,
    SessionKeys,
    pack_head,
    remove_session,
)
from repertory.backends.sessions.journal.reading import Changed, SessionReader, StoredHead
from repertory.backends.sessions.journal.store import (
    ObjectSessionStore,
    inspect_sessions,
    kind_of_key,
    list_sessions,
)
from repertory.backends.sessions.requests import SIDE_BY_SIDE, delete_all, find, names_aside, remove_aside, side_by_side
from repertory.backends.sessions.snapshots.tree import SnapshotTree, session_folder
from repertory.backends.sessions.table import is_id_of_folder, newest_first, page_by_name
from repertory.core.snapshots.location import RUN_SCOPE
from repertory.errors import (
    AlreadyExists,
    CorruptJournal,
    PreconditionFailed,
    RepertoryError,
    StoreFailed,
    StoreNotFound,
    StoreUnavailable,
)
from repertory.logs import DEBUG, note

if TYPE_CHECKING:
    from repertory.backends.ports import ObjectInfo, ObjectStore
    from repertory.backends.sessions.journal.ownership import OwnedSegments
    from repertory.backends.sessions.liveness import Liveness
    from repertory.core.journal.rows import Row

_log = logging.getLogger("repertory.sessions")
_TRIES_MAX = 8


class SnapshotJournal(ObjectSessionStore):
    """An `ObjectSessionStore` whose sessions lie below their own folders, and which moves older sessions there.

    A session that has not been opened since is read at the older place. A user without older sessions needs no
    permissions for that place: where it may not be listed, a session counts as new, unless our snapshots show that it
    has a journal, which is `StoreFailed`.
    """

    def __init__(self, objects: ObjectStore, *, owner: str, life: Liveness) -> None:
        super().__init__(objects, owner=owner, life=life, layout=BESIDE_SNAPSHOTS)

    async def sessions(self, session_id: str | None = None) -> Sequence[SessionInfo]:
        """The sessions of both layouts: journals beside snapshots, and snapshots alone."""
        self._check_open()
        objects = self._objects
        if session_id is None:
            found = await objects.list("")
        else:
            keys = self._keys(session_id)
            found = await objects.list(f"{keys.folder}/")
            headed = any(info.key == keys.head for info in found)
            found = [*found, *await self._older_objects(session_id, headed=headed)]
        return newest_first(await self._described(found))

    async def session_page(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[SessionInfo]:
        """A page of the sessions of both layouts. See `ObjectSessionStore.session_page`."""
        self._check_open()
        if not is_id_of_folder(prefix) or (prefix and ROOT.startswith(prefix)):
            return await SessionStore.session_page(self, prefix, after=after, limit=limit)
        named: dict[str, list[ObjectInfo]] = {}
        for info in await self._objects.list(prefix):
            keys = BESIDE_SNAPSHOTS.keys_around(info.key)
            if keys is not None:
                named.setdefault(BESIDE_SNAPSHOTS.name_in(keys), []).append(info)
        for info in await self._objects.list(f"{JOURNALS.before}{prefix}"):
            keys = JOURNALS.keys_around(info.key)
            if keys is not None:
                named.setdefault(JOURNALS.name_in(keys), []).append(info)

        async def described(names: Sequence[str]) -> Iterable[SessionInfo]:
            return await self._described([info for name in names for info in named[name]])

        return await page_by_name(named, described, prefix, after, limit)

    async def _described(self, found: Sequence[ObjectInfo]) -> Iterable[SessionInfo]:
        """The sessions with records among these objects of both places."""
        newer = await list_sessions(self._objects, self._life, BESIDE_SNAPSHOTS, found)
        infos = {info.session_id: info for info in newer.values()}
        # A session without a head at its own place is at the older one, or being moved.
        heads = {info.key for info in found}
        left = [info for info in found if _moved_head(info.key) not in heads]
        older = await list_sessions(self._objects, self._life, JOURNALS, left, moving=True)
        infos |= {info.session_id: info for info in older.values()}
        return infos.values()

    async def inspect(self) -> Inspection:
        """The damage found in both layouts. See `ObjectSessionStore.inspect`."""
        newer = await super().inspect()
        older = await inspect_sessions(self._objects, JOURNALS)
        return replace(newer, strays=[*older.strays, *newer.strays])

    async def quarantined(self, session_id: str) -> Sequence[str]:
        """The damaged rows that were set aside in both layouts. See `ObjectSessionStore.quarantined`."""
        newer = await super().quarantined(session_id)
        with suppress(StoreFailed):
            return [*await names_aside(self._objects, JOURNALS.keys_of(session_id).aside), *newer]
        return newer

    # Where a session lies.

    async def _where(self, session_id: str) -> SessionKeys:
        try:
            older = await self._lies_older(session_id)
        except CorruptJournal:
            older = True
        return JOURNALS.keys_of(session_id) if older else self._keys(session_id)

    async def _lies_older(self, session_id: str) -> bool:
        """True if the session must be read at the older place. Errors: `CorruptJournal` if it is damaged there."""
        if await find(self._objects, self._keys(session_id).head) is not None:
            return False
        return not (await self._older(session_id)).deleted

    async def _older(self, session_id: str) -> HeadObject:
        """The head at the older place, for a session that has none at its own; `deleted` when nothing is there."""
        found = await self._older_objects(session_id, headed=False)
        if found:
            reader = SessionReader(self._objects, JOURNALS.keys_of(session_id), session_id)
            stored = await reader.head()
            if stored is not None:
                return stored.head
            return replace(await reader.headless(), deleted=True)
        return HeadObject(session=session_id, deleted=True)

    async def _older_objects(self, session_id: str, *, headed: bool) -> Sequence[ObjectInfo]:
        """The objects at the older place. `headed`: the session has a head at its own place."""
        folder = JOURNALS.keys_of(session_id).folder
        try:
            return await self._objects.list(f"{folder}/")
        except StoreFailed as error:
            if not headed and await self._published(session_id):
                text = "the session was kept by an earlier release: allow access to its journal once, to have it moved"
                raise StoreFailed(text, session=session_id, folder=folder) from error
            note(_log, DEBUG, "the older place of a journal may not be listed", session=session_id, folder=folder)
            return ()

    async def _published(self, session_id: str) -> bool:
        tree = SnapshotTree(self._objects)
        for location in await tree.locations(session_folder(session_id)):
            run = location.scope == RUN_SCOPE
            found = await (tree.latest_run(location) if run else tree.latest(location))
            if found is not None and found.snapshot is not None and found.snapshot.position is not None:
                return True
        return False

    async def _read(self, session_id: str, read: Callable[[SessionReader], Awaitable[list[Row]]]) -> list[Row]:
        if session_id not in self._owned and await self._lies_older(session_id):
            reader = SessionReader(self._objects, JOURNALS.keys_of(session_id), session_id, moving=True)
            try:
                rows = await read(reader)
            except CorruptJournal:
                if await self._lies_older(session_id):
                    raise
            else:
                if rows or await self._lies_older(session_id):
                    return rows
            # It was moved meanwhile.
        return await super()._read(session_id, read)

    # Moving.

    async def _before(
        self, session_id: str, keys: SessionKeys, stored: StoredHead | None, takeover: bool
    ) -> HeadObject:
        older = JOURNALS.keys_of(session_id)
        if keys == older:
            return await super()._before(session_id, keys, stored, takeover)
        if stored is not None:
            if stored.head.moved_from is not None:
                await self._clear(session_id, older, keys)
            return replace(stored.head, moved_from=None)
        before = await self._older(session_id)
        if not before.deleted:
            await self._move(session_id, older, keys, takeover)
            raise Changed(keys.head)
        head = await super()._before(session_id, keys, stored, takeover)
        return replace(head, generation=max(head.generation, before.generation))

    async def _move(self, session_id: str, older: SessionKeys, keys: SessionKeys, takeover: bool) -> None:
        """Put everything at its new place, the head last. Raises `Changed` when another owner was faster. Errors:
        `SessionBusy`, `LeaseLost`, and see the class.
        """
        reader = SessionReader(self._objects, older, session_id)
        stored = await reader.head()
        if stored is None or stored.head.moved_to is None:
            owned = await self._own_older(session_id, older, takeover)
            try:
                await owned.refresh()
                await self._copy(owned, keys)
                await owned.write_moved(keys.folder)
            finally:
                with suppress(RepertoryError):
                    await owned.release()  # nothing, once it is moved
            stored = await reader.head()
        if stored is None or stored.head.moved_to is None or stored.head.deleted:
            raise Changed(older.head)
        head = replace(stored.head, moved_to=None, moved_from=older.folder)
        with suppress(AlreadyExists):
            await self._objects.put(keys.head, pack_head(head, stored.rows), Create())

    async def _own_older(self, session_id: str, older: SessionKeys, takeover: bool) -> OwnedSegments:
        try:
            return await self._own(session_id, older, takeover)
        except StoreFailed as error:
            stored = await SessionReader(self._objects, older, session_id).head()
            if stored is not None and stored.head.moved_to is not None:
                raise Changed(older.head) from error
            raise

    async def _copy(self, owned: OwnedSegments, keys: SessionKeys) -> None:
        """Copy the objects that the head at the older place needs. Errors: `LeaseLost`, those of the object store."""
        older = owned.keys
        wanted = [
            info.key.removeprefix(older.folder)
            for info in await self._objects.list(f"{older.folder}/")
            if kind_of_key(older, info.key) in ("segment", "chunk") or info.key == older.window(owned.head.window or "")
        ]
        for first in range(0, len(wanted), SIDE_BY_SIDE):
            renew_s = self._life.renew_every_s
            if renew_s is not None and anyio.current_time() - owned.signed_at >= renew_s:
                await owned.renew()
            part = wanted[first : first + SIDE_BY_SIDE]
            await side_by_side([partial(self._copy_one, owned, older, keys, name) for name in part])
        copies = {f"{keys.folder}{name}" for name in wanted}
        there = [info.key for info in await self._objects.list(f"{keys.folder}/")]
        # An interrupted move copied objects that have been merged or erased since.
        stale = [key for key in there if key not in copies and kind_of_key(keys, key) in ("segment", "chunk", "window")]
        if stale:
            await owned.prove()
            await delete_all(self._objects, stale)

    async def _copy_one(self, owned: OwnedSegments, older: SessionKeys, keys: SessionKeys, name: str) -> None:
        found = await find(self._objects, f"{older.folder}{name}")
        if found is None:
            await owned.prove()
            raise Changed(f"{older.folder}{name}")
        key = f"{keys.folder}{name}"
        condition: Condition = Create()
        for _ in range(_TRIES_MAX):
            try:
                await self._objects.put(key, found.body, condition)
                return
            except (AlreadyExists, PreconditionFailed):
                there = await find(self._objects, key)
                if there is not None and there.body == found.body:
                    return
                # Replace a copy only if this owner still has the session: the copy may be a later owner's.
                await owned.prove()
                condition = Create() if there is None else Update(there.version)
        raise StoreUnavailable("somebody else writes it as well", session=owned.lease.session_id, key=key)

    async def _clear(self, session_id: str, older: SessionKeys, keys: SessionKeys) -> None:
        """Remove what a moved session left at the older place: all but the head and fences."""
        stored: StoredHead | None = None
        with suppress(CorruptJournal):  # It was sound when the session was moved, and is no longer read.
            stored = await SessionReader(self._objects, older, session_id).head()
            if stored is None or stored.head.moved_to is None or stored.head.deleted:
                return
        await self._move_aside(older, keys)
        await remove_session(self._objects, older)
        if stored is not None:
            head = stored.head
            gone = HeadObject(
                session=session_id, generation=head.generation, edition=head.edition + 1, commit=head.commit
            )
            gone = replace(gone, deleted=True, moved_to=head.moved_to)
            with suppress(PreconditionFailed):  # another owner was faster
                await self._objects.put(older.head, pack_head(gone, ()), Update(stored.version))

    async def _move_aside(self, older: SessionKeys, keys: SessionKeys) -> None:
        """Move the session's quarantined objects as well."""
        for info in await self._objects.list(f"{older.aside}/"):
            found = await find(self._objects, info.key)
            if found is not None:
                with suppress(AlreadyExists):
                    name = info.key.removeprefix(older.aside)
                    await self._objects.put(f"{keys.aside}{name}", found.body, Create())
                await self._objects.delete(info.key)

    # Removing.

    async def _remove(self, session_id: str, keys: SessionKeys) -> None:
        older = JOURNALS.keys_of(session_id)
        if keys == older:
            await super()._remove(session_id, keys)
            return
        headed = await find(self._objects, keys.head) is not None
        there = bool(await self._older_objects(session_id, headed=headed))
        removed = there and await self._remove_older(session_id, older, keys, headed)
        try:
            await super()._remove(session_id, keys)
        except StoreNotFound:
            if not removed:
                raise
        if there:
            await self._forget_move(session_id, older)
        with suppress(StoreFailed):
            await remove_aside(self._objects, older.aside)

    async def _remove_older(self, session_id: str, older: SessionKeys, keys: SessionKeys, headed: bool) -> bool:
        """Remove a session from the older place; True if there was one. A move under way is finished first."""
        try:
            stored = await SessionReader(self._objects, older, session_id).head()
            if stored is not None and stored.head.moved_to is not None:
                if not stored.head.deleted and not headed:
                    await self._move(session_id, older, keys, takeover=False)
                return False
            if stored is None or stored.head.deleted:
                return await remove_session(self._objects, older)
            await self._check_free(older, stored, takeover=False)
            owned = await self._own_older(session_id, older, takeover=True)
        except CorruptJournal:
            await super()._remove(session_id, older)
            return True
        if not headed:
            await remove_session(self._objects, keys)  # the copies of an interrupted move
        await owned.write_tombstone()
        await remove_session(self._objects, older)
        return True

    async def _forget_move(self, session_id: str, older: SessionKeys) -> None:
        """Mark the session as deleted at the older place, too."""
        stored = await SessionReader(self._objects, older, session_id).head()
        if stored is not None and stored.head.moved_to is not None:
            await remove_session(self._objects, older)
            gone = replace(stored.head, edition=stored.head.edition + 1, deleted=True, moved_to=None)
            gone = replace(gone, seqs={}, window=None, erasing=(), base=0, merged=0, tidied=0)
            with suppress(PreconditionFailed):
                await self._objects.put(older.head, pack_head(gone, ()), Update(stored.version))

    async def _set_aside(self, session_id: str, keys: SessionKeys, keep: Sequence[Row]) -> str:
        older = JOURNALS.keys_of(session_id)
        if await self._is_moving(session_id, older):
            keys = self._keys(session_id)
            await self._move(session_id, older, keys, takeover=False)
            await self._clear(session_id, older, keys)
        return await super()._set_aside(session_id, keys, keep)

    async def _is_moving(self, session_id: str, older: SessionKeys) -> bool:
        """True if a session is opened at its new place while some of it may still be at the older one."""
        with suppress(CorruptJournal, StoreFailed):
            stored = await SessionReader(self._objects, older, session_id).head()
            return stored is not None and stored.head.moved_to is not None and not stored.head.deleted
        return False


def _moved_head(key: str) -> str | None:
    """The key of a moved session's head, given a key at its older place."""
    keys = JOURNALS.keys_around(key)
    head = "" if keys is None else f"{JOURNALS.name_in(keys)}{BESIDE_SNAPSHOTS.behind}/head"
    return head if BESIDE_SNAPSHOTS.keys_around(head) is not None else None
