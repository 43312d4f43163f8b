"""What sessions there are: one list over everything, and a get for each head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from repertory.backends.ports import ObjectInfo, SessionInfo
from repertory.backends.sessions.object_format import unpack
from repertory.backends.sessions.object_head import Head, head_in, read_object
from repertory.backends.sessions.object_keys import Layout, SessionKeys, number_in
from repertory.backends.sessions.object_owners import Owners
from repertory.backends.sessions.object_reading import Changed, SessionReader
from repertory.backends.sessions.object_requests import Requests, side_by_side
from repertory.backends.sessions.object_window import Window, seqs_after
from repertory.errors import Corrupt

_TRIES_MAX = 4


async def list_sessions(
    requests: Requests, owners: Owners, layout: Layout, found: Iterable[ObjectInfo], *, moving: bool = False
) -> dict[SessionKeys, SessionInfo]:
    """The sessions that hold records, of those that have objects among these, by their keys. `moving`: also those that
    are being moved away. Errors: the object store's.
    """
    folders = by_session(layout, found)
    read = _Listing(requests, owners, layout, moving).describe
    described = await side_by_side([partial(read, *each) for each in folders.items()])
    return {keys: info for keys, info in zip(folders, described, strict=True) if info is not None}


def by_session(layout: Layout, found: Iterable[ObjectInfo]) -> dict[SessionKeys, list[ObjectInfo]]:
    """The objects that lie in the folders of sessions, by the keys of these."""
    folders: dict[SessionKeys, list[ObjectInfo]] = {}
    for info in found:
        keys = layout.keys_around(info.key)
        if keys is not None:
            folders.setdefault(keys, []).append(info)
    return folders


def newest_first(infos: Iterable[SessionInfo]) -> list[SessionInfo]:
    """The most recently changed first."""
    return sorted(infos, key=lambda info: info.updated_at, reverse=True)


class _Listing(NamedTuple):
    requests: Requests
    owners: Owners
    layout: Layout
    moving: bool

    async def describe(self, keys: SessionKeys, found: Sequence[ObjectInfo]) -> SessionInfo | None:
        times = [info.modified_at for info in found]
        try:
            return await self._read(keys, found)
        except Corrupt:
            return SessionInfo(
                session_id=await self._name_in(keys, found),
                agents={},
                created_at=min(times),
                updated_at=max(times),
                owner=None,
                damaged=True,
            )

    async def _name_in(self, keys: SessionKeys, found: Sequence[ObjectInfo]) -> str:
        """The id of a session whose head does not say it: its folder's name, unless that stands for a longer one."""
        name = self.layout.name_in(keys)
        for info in found if name.startswith("%") else ():
            stored = await self.requests.find(info.key)
            with suppress(ValueError):
                said = unpack(stored.body).header.get("session") if stored is not None else None
                if isinstance(said, str) and self.layout.keys_of(said) == keys:
                    return said
        return name

    async def _read(self, keys: SessionKeys, found: Sequence[ObjectInfo]) -> SessionInfo | None:
        missing = ""
        for _ in range(_TRIES_MAX):
            stored = await self.requests.find(keys.head)
            try:
                if stored is None:
                    await SessionReader(self.requests, keys, self.layout.name_in(keys)).headless()
                    return None
                head = head_in(read_object(stored.body, "head", None, keys.head))
                if self.layout.keys_of(head.session) != keys:
                    raise Corrupt("another session's head", key=keys.head, session=head.session)
                return await self._info(keys, head, found)
            except ValueError as error:
                raise Corrupt("a damaged object", key=keys.head, cause=str(error)) from error
            except Changed as change:
                missing = str(change)
                found = await self.requests.list(f"{keys.folder}/")
        raise Corrupt("an object is missing", key=missing)

    async def _info(self, keys: SessionKeys, head: Head, found: Sequence[ObjectInfo]) -> SessionInfo | None:
        if head.deleted or (head.moved_to is not None and not self.moving):
            return None
        seqs, window, created_at = head.seqs, Window(), head.created_at
        segments = [info for info in found if info.key.startswith(keys.segments)]
        newer = [info for info in segments if (number_in(info.key) or 0) > head.commit]
        if newer and not head.orderly:
            for segment in await SessionReader(self.requests, keys, head.session).segments_in(newer, head.commit):
                seqs = seqs_after(seqs, segment.rows)
                window.add(segment.rows)
                created_at = created_at or Window(segment.rows[:1]).updated_at(0.0)
        if not seqs:
            return None
        last_sign_at = max((info.modified_at for info in found if info.key != keys.wanted), default=0.0)
        owned = head.owner is not None and await self.owners.seems_alive(head.owner, last_sign_at)
        return SessionInfo(
            session_id=head.session,
            agents=dict(seqs),
            created_at=created_at,
            updated_at=max(head.updated_at, window.updated_at(head.updated_at)),
            owner=head.owner if owned else None,
        )
