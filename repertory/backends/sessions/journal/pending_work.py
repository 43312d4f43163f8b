"""Markers of pending work: one object for each agent of a session that must be woken if nobody calls.

    pending/journals/<session>/<agent>/<generation, 16 digits>-<number, 8 digits>-<due, 12 digits>

The body says it in full; of an agent's markers the last one counts. The due time in the key is the first one: claims
move it in the body, and only to later. An owner never uses a key twice, and removes none of later owners, so a
request that arrives late undoes nothing. It puts a marker before the segment that it belongs to, and removes it after
the segment that ends it: a crash in between may leave a marker too many, and never one too few. The head decides: a
session that is woken and owes nothing removes its markers.

A turn that is under way is due some seconds after it began, and most have ended by then. So its marker is put when it
is due, and costs nothing until then. A process that dies earlier leaves the prompt for whoever opens the session.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import anyio
import msgspec
from msgspec.structs import replace

from repertory.backends.ports import Create, ObjectInfo, ObjectStore, StoredObject, Update, WorkQuery
from repertory.backends.sessions.journal.format import HeadObject, Layout, SessionKeys
from repertory.backends.sessions.requests import SIDE_BY_SIDE, delete_all, find, find_all, side_by_side
from repertory.core.ids import RESERVED
from repertory.core.pending_work import (
    CLAIMS_MAX,
    DueTime,
    PendingWork,
    claims_after,
    may_claim,
    next_due,
)
from repertory.core.tenants import tenant_part
from repertory.errors import PreconditionFailed, RepertoryError, Retryable

_GENERATION, _NUMBER, _AT = 16, 8, 12
_NAME_PARTS = [_GENERATION, _NUMBER, _AT]
_LOOKS_MAX = 5
"""Listings of all markers, at most, when some of them change meanwhile."""
LISTED_PER_S = 1000
"""Markers listed in a second on the average, at most: as many as one request lists."""


class WorkMarker(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a marker."""

    session: str
    agent: str
    at: float
    why: str
    claims: int = 0
    edition: int = 0
    """The edition of the head that the last claim has seen."""

    def claims_by(self, edition: int | None) -> int:
        """The number of claims that count. `edition`: of the last head with which an owner gave the session up; None:
        not known, or it died with the session.
        """
        return 0 if edition is not None and edition != self.edition else self.claims

    def work(self, claims: int) -> PendingWork:
        return PendingWork(session_id=self.session, agent_id=self.agent, at=self.at, why=self.why, claims=claims)


def _marker_in(stored: StoredObject | None) -> WorkMarker | None:
    """None if it is gone or damaged."""
    # A damaged marker must not keep the others from being claimed; its session is opened by the next call anyway.
    with suppress(msgspec.DecodeError):
        return None if stored is None else msgspec.json.decode(stored.body, type=WorkMarker)
    return None


def _folder_of(agent_id: str) -> str:
    if agent_id.startswith((RESERVED, "%")):
        return f"%{sha256(agent_id.encode()).hexdigest()}"
    return agent_id


def _numbers(key: str) -> tuple[int, int, int] | None:
    """Generation, number and due time in a marker's key; None for other keys."""
    parts = key.rpartition("/")[2].split("-")
    if [len(part) for part in parts] != _NAME_PARTS or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    generation, number, at = (int(part) for part in parts)
    return generation, number, at


class SessionDebts:
    """The markers of a session, for its owner."""

    def __init__(
        self,
        objects: ObjectStore,
        keys: SessionKeys,
        session_id: str,
        generation: int,
        wall: Callable[[], float] | None = None,
    ) -> None:
        """`wall` gives epoch seconds; without it the marker of a turn is put when the turn begins."""
        self._wall = wall
        self._later: dict[str, DueTime] = {}
        """Turns that are not due yet and have no marker, by agent."""
        self._objects = objects
        self._folder = keys.pending_work
        self._session_id = session_id
        self._generation = generation
        self._number = 0
        self._stored: dict[str, list[str]] | None = None
        """The keys of markers that may be stored, in order, by the agents' folders; None: not known."""
        self.released_edition: int | None = None
        """The edition of the head with which the last owner gave the session up; None: it died."""

    @property
    def has_late(self) -> bool:
        """True if `owe_late` may have something to do."""
        return bool(self._later)

    def none_stored(self) -> None:
        """The owner before left no markers."""
        self._stored = {}

    async def may_be_stored(self) -> bool:
        """True if markers may be stored when the owner leaves, or if that is not known."""
        if self._folder is None:
            return False
        try:
            return any((await self._known(self._folder)).values())
        except RepertoryError:
            return True

    async def owe(self, dues: Mapping[str, DueTime]) -> list[str]:
        """Put the markers of pending work from the next commit on; their keys. Errors: those of the object store."""
        if self._folder is None:
            return []
        for agent_id, due in dues.items():
            self._later.pop(agent_id, None)
            # A turn that ends within its first seconds, as most do, makes no request at all.
            if due.why == "turn" and due.at is not None and self._wall is not None and due.at > self._wall():
                self._later[agent_id] = due
        stating = [due for agent_id, due in dues.items() if due.at is not None and agent_id not in self._later]
        return await self._put_all(self._folder, stating) if stating else []

    async def owe_late(self, *, leaving: bool = False) -> None:
        """Put the markers of turns that have become due by now, or of all that are under way. What cannot be put is
        tried again with the next call.
        """
        now = math.inf if leaving or self._wall is None else self._wall()
        late = [due for due in self._later.values() if due.at is not None and due.at <= now]
        if late and self._folder is not None:
            with suppress(RepertoryError):
                # By a comparison with what was put, since the turn may have ended, or stated another time, during the
                # requests.
                await self._put_all(self._folder, late)
                self._later = {agent_id: due for agent_id, due in self._later.items() if due not in late}

    async def _put_all(self, folder: str, stating: Sequence[DueTime]) -> list[str]:
        known = await self._known(folder)
        return await side_by_side([partial(self._put, folder, known, due) for due in stating])

    async def _put(self, folder: str, known: dict[str, list[str]], due: DueTime) -> str:
        assert due.at is not None
        keys = known.setdefault(_folder_of(due.agent_id), [])
        marker = WorkMarker(session=self._session_id, agent=due.agent_id, at=due.at, why=due.why)
        # The claims of the marker before count on: otherwise a turn that kills its owner would begin anew at 0 with
        # each owner, and would never be parked.
        before = _marker_in(await find(self._objects, keys[-1])) if keys and claims_after(due.why, 1) else None
        if before is not None:
            marker = replace(marker, claims=before.claims_by(self.released_edition), edition=before.edition)
        self._number += 1
        name = f"{self._generation:0{_GENERATION}}-{self._number:0{_NUMBER}}-{max(int(due.at), 0):0{_AT}}"
        key = f"{folder}{_folder_of(due.agent_id)}/{name}"
        keys.append(key)  # It may be stored, whatever the answer.
        await self._objects.put(key, msgspec.json.encode(marker), Create())
        return key

    async def settle(self, dues: Mapping[str, DueTime]) -> None:
        """Remove the markers that these replace, which are stored by now. What cannot be removed is a marker too many,
        until the next time.
        """
        ended = {agent_id: due for agent_id, due in dues.items() if agent_id not in self._later}
        if self._folder is None or not ended:
            return
        with suppress(RepertoryError):
            known = await self._known(self._folder)
            for due in ended.values():
                await self._remove(known.get(_folder_of(due.agent_id), []), keep=0 if due.at is None else 1)

    async def take_back(self, keys: Sequence[str]) -> None:
        """Remove the markers of a commit that was refused, since another owner has the session."""
        with suppress(RepertoryError):
            await delete_all(self._objects, keys)

    async def forget(self) -> None:
        """Remove the markers of a deleted session. Errors: those of the object store."""
        if self._folder is not None:
            for keys in (await self._known(self._folder)).values():
                await self._remove(keys, keep=0)

    async def _remove(self, keys: list[str], keep: int) -> None:
        # A copy of the list: entries leave it as they are removed, and those whose removal fails stay for the next
        # time.
        for key in keys[: len(keys) - keep]:
            await self._objects.delete(key)
            keys.remove(key)

    async def _known(self, folder: str) -> dict[str, list[str]]:
        """The keys that may be stored. Those of later owners are not among them."""
        if self._stored is None:
            stored: dict[str, list[str]] = {}
            for info in await self._objects.list(folder):
                numbers = _numbers(info.key)
                # A fenced owner must not remove what the next one has put.
                if numbers is not None and numbers[0] <= self._generation:
                    stored.setdefault(info.key.removeprefix(folder).split("/", 1)[0], []).append(info.key)
            # Listed once per owner and then kept in memory: nobody else puts markers while this owner has the session.
            self._stored = stored
        return self._stored


class SessionOwner(NamedTuple):
    """The owner of a session that has pending work."""

    here: bool
    """True if it is the store that asks."""
    alive: bool
    """True if it is another store, which lives."""
    edition: int
    """The edition of the session's head."""
    released: bool

    @classmethod
    def of(cls, head: HeadObject, *, here: bool, alive: bool) -> SessionOwner:
        return cls(here, alive, head.edition, released=head.owner is None)

    @property
    def released_edition(self) -> int | None:
        return self.edition if self.released else None


OwnerOf = Callable[[str, SessionKeys], Awaitable[SessionOwner | None]]
"""Finds the owner of the session with this id and these keys; None: there is no such session, or it was moved away."""


class DueMarkers:
    """The markers of all sessions, for those who wake them."""

    def __init__(self, objects: ObjectStore, layout: Layout, owner_of: OwnerOf, rest_s: float) -> None:
        """`rest_s`: how long a marker is left alone whose session cannot be woken, since asking has a price."""
        self._objects = objects
        self._layout = layout
        self._owner_of = owner_of
        self._rest_s = rest_s
        self._rests: dict[str, float] = {}
        """The end of each marker's rest by its key, on the event loop's clock."""
        self._read: dict[str, tuple[str, WorkMarker]] = {}
        """The markers read so far with their versions, by key."""
        self._next_at = 0.0

    def changed(self, session_id: str) -> None:
        """This store has the session now, or has released it: look at its markers again."""
        if self._rests and (folder := self._layout.keys_of(session_id).pending_work) is not None:
            self._rests = {key: until for key, until in self._rests.items() if not key.startswith(folder)}

    async def claim(self, query: WorkQuery) -> list[PendingWork]:
        """Claim work that is due; see `Waking.claim_due`."""
        clock = anyio.current_time()
        # Each thousand markers is a request. With many of them the dispatcher lists less often, not more.
        if self._layout.pending_work is None or query.limit <= 0 or clock < self._next_at:
            return []
        markers = await self._list(self._layout.pending_work)
        self._next_at = clock + (len(markers) // LISTED_PER_S)
        there = {info.key for info in markers}
        self._rests = {key: until for key, until in self._rests.items() if key in there and until > clock}
        # Bounded by what is stored.
        self._read = {key: each for key, each in self._read.items() if key in there}
        folders = {_folder_of(agent_id) for agent_id in query.agents}
        due = [
            (numbers[2], info)
            for info in markers
            if (numbers := _numbers(info.key)) is not None
            # By the key alone: most markers are not due, and need no get. The key may be too early, never too late.
            and numbers[2] <= query.now
            and info.key not in self._rests
            and info.key.split("/")[-2] in folders
            and tenant_part(info.key.removeprefix(self._layout.pending_work).split("/", 1)[0]) not in query.passing
        ]
        due.sort(key=lambda each: each[0])
        claimed: list[PendingWork] = []
        # In pieces: with ten thousand due and a limit of 16, reading all of them would be wasted.
        for start in range(0, len(due), SIDE_BY_SIDE):
            found = await self._markers([info for _, info in due[start : start + SIDE_BY_SIDE]])
            for key, version, marker in sorted(found, key=lambda each: each[2].at):
                if len(claimed) == query.limit:
                    return claimed
                if marker.at <= query.now and marker.agent in query.agents:
                    try:
                        rests = (marker.session, marker.agent) in query.stalled
                        work = await self._claim(key, version, marker, query.now, rests=rests)
                    except Retryable:
                        # An error now would lose what was claimed: nobody would wake it until its hold is over.
                        if claimed:  # These are claimed, whatever became of this one.
                            return claimed
                        raise
                    claimed += [] if work is None else [work]
        return claimed

    async def all(self, session_id: str | None) -> list[PendingWork]:
        """The pending work of one session, or of all; see `Waking.pending_work`."""
        folder = self._layout.pending_work if session_id is None else self._layout.keys_of(session_id).pending_work
        listed = await self._list(folder)
        found = await self._markers(listed)
        # Bounded, since a listing that changes for ever is no reason to give no answer.
        for _ in range(_LOOKS_MAX):
            if len(found) == len(listed):
                break
            listed = await self._list(folder)  # An owner has put another marker in the place of one that was listed.
            found = await self._markers(listed)
        owners = await side_by_side(
            [partial(self._owner_of, marker.session, self._keys(key)) for key, _, marker in found]
        )
        works = [
            marker.work(marker.claims_by(owner.released_edition))
            for (_, _, marker), owner in zip(found, owners, strict=True)
            if owner is not None
        ]
        return sorted(works, key=lambda work: work.at)

    async def _claim(
        self, key: str, version: str, marker: WorkMarker, now: float, *, rests: bool
    ) -> PendingWork | None:
        owner = await self._owner_of(marker.session, self._keys(key))
        # The session was deleted, and a crash has kept its marker.
        if owner is None:
            await self._objects.delete(key)
            return None
        claims = marker.claims_by(owner.released_edition)
        if owner.alive or claims >= CLAIMS_MAX or not may_claim(marker.why, owned_here=owner.here and not rests):
            self._rests[key] = anyio.current_time() + self._rest_s
            return None
        moved = replace(marker, at=next_due(now, claims + 1), claims=claims + 1, edition=owner.edition)
        try:
            # The condition is what makes one of many dispatchers win.
            stored = await self._objects.put(key, msgspec.json.encode(moved), Update(version))
        except PreconditionFailed:
            return None  # Another store has claimed it, or it is done.
        self._read[key] = stored, moved
        return marker.work(claims + 1)

    async def _list(self, folder: str | None) -> list[ObjectInfo]:
        """The last marker of each agent below this folder."""
        if folder is None:
            return []
        found = await self._objects.list(folder)
        # Listings are sorted by key, and keys by generation and number: the last one of each folder wins.
        return list({info.key.rpartition("/")[0]: info for info in found if _numbers(info.key) is not None}.values())

    async def _markers(self, infos: Sequence[ObjectInfo]) -> list[tuple[str, str, WorkMarker]]:
        """Key, version and body of each that can be read."""
        known = {info.key: self._read.get(info.key) for info in infos}
        unread = [info.key for info in infos if (read := known[info.key]) is None or read[0] != info.version]
        for key, stored in zip(unread, await find_all(self._objects, unread), strict=True):
            marker = _marker_in(stored)
            known[key] = None if marker is None or stored is None else (stored.version, marker)
        found = {key: read for key, read in known.items() if read is not None}
        self._read |= found
        return [(key, *read) for key, read in found.items()]

    def _keys(self, key: str) -> SessionKeys:
        return self._layout.keys_of_markers(key)
