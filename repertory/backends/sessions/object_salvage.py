"""Reading around damage in the objects of a session, and beginning the session anew with what can be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from repertory.backends.mending_ports import Damage, Inspection, Salvage
from repertory.backends.ports import Create, Lease, ObjectInfo
from repertory.backends.sessions.object_format import pack
from repertory.backends.sessions.object_head import Head, ObjectKind, erasing_in, head_in, pack_head, read_object
from repertory.backends.sessions.object_keys import Layout, SessionKeys, number_in
from repertory.backends.sessions.object_listing import by_session
from repertory.backends.sessions.object_ownership import OwnedSession
from repertory.backends.sessions.object_reading import StoredHead
from repertory.backends.sessions.object_removal import remove_session
from repertory.backends.sessions.object_requests import Requests, side_by_side
from repertory.backends.sessions.object_window import without
from repertory.core.journal.rows import Row
from repertory.errors import CorruptJournal


class Remains(NamedTuple):
    """What is left of a session."""

    salvage: Salvage
    head: Head | None
    """None when it cannot be read, or is not there."""
    version: str | None
    """Of the head, readable or not; None when it is not there."""
    end: int
    """The highest commit that anything tells of."""
    generation: int
    """The highest of the same kind."""


async def salvage_session(requests: Requests, keys: SessionKeys, session_id: str) -> Remains:
    """Everything of a session that can be read, object by object."""
    found = sorted(await requests.list(f"{keys.folder}/"), key=lambda info: info.key != keys.head)  # the head first
    bodies = await requests.find_all([info.key for info in found])
    damages: list[Damage] = []
    rows: list[Row] = []
    erasing: set[tuple[str, int]] = set()
    head, version, end, generation = None, None, 0, 0
    for info, stored in zip(found, bodies, strict=True):
        kind = kind_of(keys, info.key)
        if stored is None or kind is None:
            continue
        version = stored.version if kind == "head" else version
        try:
            packed = read_object(stored.body, kind, session_id, info.key)
            erasing.update(erasing_in(packed.header.get("erasing", [])))
            head = head_in(packed) if kind == "head" else head
        except (CorruptJournal, ValueError) as error:
            damages.append(Damage(where=info.key, what=str(error)))
            continue
        said = packed.header.get("generation")
        generation = max(generation, said if isinstance(said, int) else 0)
        end = max(end, number_in(info.key) or 0, head.commit if head is not None else 0)
        # What lies up to here belongs to a session of the same name that was deleted.
        if head is None or (number_in(info.key) or head.base + 1) > head.base:
            rows += packed.rows
    damages += _missing(keys, head, found)
    salvage = Salvage(rows=without(rows, erasing), damages=damages)
    return Remains(salvage, head, version, end, generation)


async def begin_anew(
    requests: Requests, keys: SessionKeys, remains: Remains, lease: Lease, keep: Sequence[Row]
) -> None:
    """Put a segment with these rows, and a head for which nothing counts that was put before; then remove that.

    Killed on the way, the session is as damaged as before, or sound with some objects too many. Errors: those of
    the object store; `AlreadyExists`, `PreconditionFailed`, `LeaseLost` when somebody else has come meanwhile.
    """
    end = remains.end
    said = {"kind": "segment", "session": lease.session_id, "commit": end + 1, "owner": lease.owner}
    body = pack({**said, "generation": lease.generation}, keep)
    await requests.put(keys.segment(end + 1), body, Create())
    head = Head(
        session=lease.session_id,
        generation=lease.generation,
        owner=lease.owner,
        edition=remains.head.edition + 1 if remains.head is not None else 0,
        commit=end,
        base=end,
        merged=end,
        tidied=end,
    )
    version = remains.version
    if version is None:
        version = await requests.put(keys.head, pack_head(replace(head, owner=None), ()), Create())
    owned = OwnedSession(requests, keys, lease, head)
    await owned.begin(StoredHead(Head(session=lease.session_id), [], version))
    await remove_session(requests, keys, up_to=end)
    await owned.release()


async def inspect_sessions(requests: Requests, layout: Layout) -> Inspection:
    """What lies among the sessions and is no part of any."""
    found = await requests.list(layout.before)
    # Others' objects may lie beside the sessions themselves, and not in a folder for nothing but them.
    strays = [info.key for info in found if layout.before and layout.keys_around(info.key) is None]
    folders = by_session(layout, found)
    heads = await side_by_side([partial(_head, requests, keys) for keys in folders])
    for (keys, infos), head in zip(folders.items(), heads, strict=True):
        strays += [info.key for info in infos if _is_stray(keys, head, info.key)]
    return Inspection(strays=strays)


def kind_of(keys: SessionKeys, key: str) -> ObjectKind | None:
    """What should lie under a key of the session; None for what is somebody else's, or has no rows."""
    if key == keys.head:
        return "head"
    if key.startswith(keys.windows):
        return "window"
    if number_in(key) is None:
        return None
    return "segment" if key.startswith(keys.segments) else "chunk" if key.startswith(keys.chunks) else None


def _missing(keys: SessionKeys, head: Head | None, found: Sequence[ObjectInfo]) -> list[Damage]:
    """Segments that should be there, and the head."""
    there = {info.key for info in found}
    if head is None:
        return [] if keys.head in there else [Damage(where=keys.head, what="the object is missing")]
    numbers = sorted(number_in(key) or 0 for key in there if key.startswith(keys.segments))
    wanted: list[str] = []
    expected = head.merged + 1
    for number in (number for number in (*numbers, head.commit + 1) if number >= expected):
        wanted += [keys.segment(expected)] if number > expected else []  # the first of those that are missing there
        expected = number + 1
    if head.window is not None:
        wanted.append(keys.window(head.window))
    return [Damage(where=key, what="the object is missing") for key in wanted if key not in there]


async def _head(requests: Requests, keys: SessionKeys) -> Head | None:
    stored = await requests.find(keys.head)
    if stored is None:
        return None
    try:
        return head_in(read_object(stored.body, "head", None, keys.head))
    except (CorruptJournal, ValueError):
        return None


def _is_stray(keys: SessionKeys, head: Head | None, key: str) -> bool:
    """Whether an object is nobody's, or was left over when somebody was killed."""
    match kind_of(keys, key):
        case None:
            return key != keys.wanted
        case "window":
            return head is not None and (head.window is None or key != keys.window(head.window))
        case "chunk":
            return head is not None and not head.base < (number_in(key) or 0) <= head.merged
        case "head" | "segment":
            return False
