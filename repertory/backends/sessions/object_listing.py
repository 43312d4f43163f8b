"""What sessions there are: one list over everything, and a get for each head."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from repertory.backends.ports import ObjectInfo, SessionInfo
from repertory.backends.sessions.object_format import unpack
from repertory.backends.sessions.object_head import Head, head_in, read_object
from repertory.backends.sessions.object_keys import ROOT, SessionKeys, keys_of, number_in
from repertory.backends.sessions.object_owners import Owners
from repertory.backends.sessions.object_reading import Changed, SessionReader
from repertory.backends.sessions.object_requests import Requests, side_by_side
from repertory.backends.sessions.object_window import Window, seqs_after
from repertory.errors import Corrupt

_TRIES_MAX = 4


async def list_sessions(requests: Requests, owners: Owners, only: SessionKeys | None) -> Sequence[SessionInfo]:
    """Every session that holds records, the most recently changed first; or `only` one. Errors: the object store's."""
    folders: dict[str, list[ObjectInfo]] = {}
    for info in await requests.list(f"{ROOT}/" if only is None else f"{only.folder}/"):
        folders.setdefault("/".join(info.key.split("/")[:2]), []).append(info)
    calls = [partial(_describe, requests, owners, SessionKeys(folder), found) for folder, found in folders.items()]
    described = await side_by_side(calls)
    return sorted((info for info in described if info is not None), key=lambda info: info.updated_at, reverse=True)


async def _describe(
    requests: Requests, owners: Owners, keys: SessionKeys, found: Sequence[ObjectInfo]
) -> SessionInfo | None:
    times = [info.modified_at for info in found]
    try:
        return await _read(requests, owners, keys, found)
    except Corrupt:
        return SessionInfo(
            session_id=await _name_in(requests, keys, found),
            agents={},
            created_at=min(times),
            updated_at=max(times),
            owner=None,
            damaged=True,
        )


async def _name_in(requests: Requests, keys: SessionKeys, found: Sequence[ObjectInfo]) -> str:
    """The id of a session whose head does not say it: its folder's name, unless that stands for a longer one."""
    name = keys.folder.rpartition("/")[2]
    for info in found if name.startswith("%") else ():
        stored = await requests.find(info.key)
        with suppress(ValueError):
            said = unpack(stored.body).header.get("session") if stored is not None else None
            if isinstance(said, str) and keys_of(said) == keys:
                return said
    return name


async def _read(
    requests: Requests, owners: Owners, keys: SessionKeys, found: Sequence[ObjectInfo]
) -> SessionInfo | None:
    missing = ""
    for _ in range(_TRIES_MAX):
        stored = await requests.find(keys.head)
        try:
            if stored is None:
                await SessionReader(requests, keys, keys.folder.rpartition("/")[2]).headless()
                return None
            head = head_in(read_object(stored.body, "head", None, keys.head))
            if keys_of(head.session) != keys:
                raise Corrupt("another session's head", key=keys.head, session=head.session)
            return await _info(requests, owners, keys, head, found)
        except ValueError as error:
            raise Corrupt("a damaged object", key=keys.head, cause=str(error)) from error
        except Changed as change:
            missing = str(change)
            found = await requests.list(f"{keys.folder}/")
    raise Corrupt("an object is missing", key=missing)


async def _info(
    requests: Requests, owners: Owners, keys: SessionKeys, head: Head, found: Sequence[ObjectInfo]
) -> SessionInfo | None:
    if head.deleted:
        return None
    seqs, window, created_at = head.seqs, Window(), head.created_at
    newer = [info for info in found if info.key.startswith(keys.segments) and (number_in(info.key) or 0) > head.commit]
    if newer and not head.orderly:
        for segment in await SessionReader(requests, keys, head.session).segments_in(newer, head.commit):
            seqs = seqs_after(seqs, segment.rows)
            window.add(segment.rows)
            created_at = created_at or Window(segment.rows[:1]).updated_at(0.0)
    if not seqs:
        return None
    last_sign_at = max((info.modified_at for info in found if info.key != keys.wanted), default=0.0)
    owned = head.owner is not None and await owners.seems_alive(head.owner, last_sign_at)
    return SessionInfo(
        session_id=head.session,
        agents=dict(seqs),
        created_at=created_at,
        updated_at=max(head.updated_at, window.updated_at(head.updated_at)),
        owner=head.owner if owned else None,
    )
