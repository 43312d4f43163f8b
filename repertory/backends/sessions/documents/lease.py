"""The leases of a tree: one object per session, replaced under its version.

It names owner and generation. Where reading costs requests, it also holds one head per agent: what opening it needs, by
value, as of the last release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from repertory.backends.ports import Create, Expect, Lease, ObjectStep, Put, Update
from repertory.backends.sessions.documents.reading import SessionNames
from repertory.backends.sessions.requests import carry_out, find
from repertory.backends.sessions.table import busy, is_current, lost, rival
from repertory.core.json_bytes import parsed, read
from repertory.core.message_tree.documents import ALTERED, is_altered, session_document, with_digest
from repertory.errors import AlreadyExists, Corrupt, LeaseLost, PreconditionFailed

if TYPE_CHECKING:
    from repertory.backends.ports import ObjectStore
    from repertory.backends.sessions.liveness import Liveness

_TRIES = 5
_FORMAT = 1


class LeaseFile(Struct, frozen=True, kw_only=True):
    generation: int = 0
    owner: str | None = None
    proved_at: float = 0.0
    version: str | None = None
    """None when there is no such object."""
    heads: Mapping[str, object] = {}
    """Agent id to head."""
    tails: Mapping[str, int] = {}
    """Journal to its last row at the last release: no reader may find less."""
    wanted: bool = False
    """True if another process asks the owner for the session."""


class HeldLease(Struct):
    """A lease of this owner, and what is known of its object."""

    lease: Lease
    version: str
    proved_at: float
    heads: dict[str, object]
    tails: dict[str, int] = {}
    """Journal to the last row that must exist."""
    wanted: bool = False
    """True if another process has asked for the session."""


class TreeLeases:
    def __init__(
        self, objects: ObjectStore, life: Liveness, owner: str, wall: Callable[[], float], prove_s: float
    ) -> None:
        """`prove_s`: how long a proof of ownership counts; 0 asks each time."""
        self._objects = objects
        self._life = life
        self._owner = owner
        self._wall = wall
        self._prove_s = prove_s
        self._generations: dict[str, int] = {}
        """The last generations of sessions that were deleted here."""

    async def acquire(self, names: SessionNames, *, takeover: bool) -> HeldLease:
        """Own the session. Errors: `SessionBusy`."""
        await self._life.begin()
        found = LeaseFile()
        for _ in range(_TRIES):
            found = await self.read(names)
            if not takeover and await self.in_other_hands(found):
                await self._ask(names, found)
                break
            floor = self._generations.get(names.session_id, 0)
            generation = max(found.generation + 1, floor + 1, int(self._wall() * 1000) if found.version is None else 0)
            before = rival(found, self._owner)
            lease = Lease(session_id=names.session_id, owner=self._owner, generation=generation, taken_from=before)
            now = self._wall()
            if found.version is None:
                await self._create_session(names, now)
            condition = Create() if found.version is None else Update(found.version)
            try:
                version = await self._objects.put(names.lease, _body(lease, now, {}, found.tails), condition)
            except (AlreadyExists, PreconditionFailed):
                continue
            heads = dict(found.heads) if found.owner is None else {}
            return HeldLease(lease, version, now, heads, dict(found.tails))
        raise busy(names.session_id, found.owner)

    async def acquire_again(self, names: SessionNames, held: HeldLease, unchanged: Sequence[ObjectStep]) -> bool:
        """Own a session that was released. False if its lease has changed since, or one of `unchanged` fails."""
        await self._life.begin()
        now = self._wall()
        taken = self._again(names, _body(held.lease, now, {}, held.tails), held.version)
        done = await carry_out(self._objects, [*unchanged, taken])
        if isinstance(done.error, PreconditionFailed):
            return False
        if done.error is not None:
            raise done.error
        held.version = str(done.versions[-1])
        held.proved_at, held.wanted = now, False
        return True

    async def _ask(self, names: SessionNames, found: LeaseFile) -> None:
        """Ask the owner for the session. Without another channel, the request goes into the lease, where the owner
        finds it with its next proof. If another writer is faster, the caller asks again.
        """
        owner, version = found.owner, found.version
        if owner is None or version is None or found.wanted or await self._life.ask(owner, names.session_id):
            return
        lease = Lease(session_id=names.session_id, owner=owner, generation=found.generation)
        with suppress(PreconditionFailed):
            await self._objects.put(
                names.lease, _body(lease, found.proved_at, found.heads, found.tails, wanted=True), Update(version)
            )

    async def _create_session(self, names: SessionNames, at: float) -> None:
        """The session's document comes first: other programs take a folder without one for a session that they cannot
        open.
        """
        with suppress(AlreadyExists):
            await self._objects.put(names.session, session_document(names.session_id, at), Create())

    async def read(self, names: SessionNames) -> LeaseFile:
        """The object as it is now. Errors: `Corrupt`."""
        stored = await find(self._objects, names.lease)
        if stored is None:
            return LeaseFile()
        try:
            fields = read(stored.body)
            if is_altered(parsed(stored.body)):
                raise ValueError(ALTERED)
            owner, heads, tails = fields.get("owner"), fields.get("heads"), fields.get("tails")
            if fields.get("format") != _FORMAT:
                raise ValueError("a format that this release does not know")
            return LeaseFile(
                generation=int(cast("int", fields["generation"])),
                owner=owner if isinstance(owner, str) else None,
                proved_at=float(cast("float", fields["proved_at"])),
                version=stored.version,
                heads=cast("dict[str, object]", heads) if isinstance(heads, dict) else {},
                tails={name: int(seq) for name, seq in cast("dict[str, int]", tails or {}).items()},
                wanted=fields.get("wanted") is True,
            )
        except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as error:
            if not stored.body.strip(b"\0 \n"):  # Cut off by a power failure of its writer: the session has no owner.
                return LeaseFile(version=stored.version)
            raise Corrupt("the lease of the session cannot be read", file=names.lease, cause=str(error)) from error

    async def in_other_hands(self, found: LeaseFile) -> bool:
        """True if a live owner other than this one has it."""
        other = rival(found, self._owner)
        return other is not None and await self._life.is_alive(other, found.proved_at)

    async def other_owner(self, names: SessionNames) -> str | None:
        """The live owner of a session, other than this one."""
        found = await self.read(names)
        return found.owner if await self.in_other_hands(found) else None

    async def alive(self, found: LeaseFile) -> str | None:
        return found.owner if found.owner == self._owner or await self.in_other_hands(found) else None

    def expected(self, names: SessionNames, held: HeldLease) -> list[Expect]:
        """What a write may begin with instead of `check`, where the store is asked each time. When it fails, `look`."""
        return [] if self._prove_s else [Expect(names.lease, held.version)]

    async def check(self, names: SessionNames, held: HeldLease) -> LeaseLost | None:
        """None if the lease is current. Asks the store when the last proof is too old."""
        if self._prove_s and 0 <= self._wall() - held.proved_at <= self._prove_s:  # Negative: the clock went back.
            return None
        return await self.prove(names, held) if self._prove_s else await self.look(names, held)

    async def look(self, names: SessionNames, held: HeldLease) -> LeaseLost | None:
        """None if the lease is current in the store now. Asks nothing where owners cannot be fenced."""
        if self._prove_s == math.inf:
            return None
        found = await self.read(names)
        if not is_current(found, held.lease) or found.version is None:
            return lost(held.lease)
        held.version, held.wanted = found.version, held.wanted or found.wanted
        return None

    async def prove(self, names: SessionNames, held: HeldLease) -> LeaseLost | None:
        """Replace the object by one with a later time. None if the lease is current."""
        for _ in range(_TRIES):
            now = self._wall()
            try:
                held.version = await self._objects.put(
                    names.lease, _body(held.lease, now, {}, held.tails), Update(held.version)
                )
            except PreconditionFailed:
                found = await self.read(names)  # It may be our own put, whose response was lost.
                if not is_current(found, held.lease):
                    break
                held.version = found.version or held.version
                held.wanted = held.wanted or found.wanted
            else:
                held.proved_at = now
                return None
        return lost(held.lease)

    async def release(
        self, names: SessionNames, held: HeldLease, heads: Mapping[str, object], puts: Sequence[Put] = ()
    ) -> Sequence[str | None] | None:
        """Put these documents, and release the session. Returns their versions. A lease that is no longer current is
        ignored: None.
        """
        body = _body(held.lease, self._wall(), heads, held.tails, owner=None)
        versions: list[str | None] = []
        for _ in range(_TRIES):
            left = puts[len(versions) :]
            first = self.expected(names, held) if left else []
            done = await carry_out(self._objects, [*first, *left, self._again(names, body, held.version)])
            versions += done.versions[len(first) : len(first) + len(left)]
            if done.error is None:
                held.version = str(done.versions[-1])
                await self._life.freed(names.session_id)
                return versions
            if not isinstance(done.error, PreconditionFailed):
                raise done.error
            found = await self.read(names)  # Another process may have asked for the session.
            if not is_current(found, held.lease):
                break
            held.version = found.version or held.version
        return None

    def _again(self, names: SessionNames, body: bytes, version: str) -> Put:
        """Take or release a session under a lease whose generation is on stable storage already. Where the owner dies
        with its machine, a crash of that machine frees the session, whatever the object says then.
        """
        return Put(names.lease, body, Update(version), lasting=self._life.renew_every_s is not None)

    def forget(self, session_id: str, generation: int) -> None:
        """Remember a deleted session's generation; the next one must be higher."""
        self._generations[session_id] = max(generation, self._generations.get(session_id, 0))


def _body(
    lease: Lease,
    at: float,
    heads: Mapping[str, object],
    tails: Mapping[str, int],
    *,
    owner: str | None = "",
    wanted: bool = False,
) -> bytes:
    named = lease.owner if owner == "" else owner
    fields: dict[str, object] = {"format": _FORMAT, "generation": lease.generation, "owner": named, "proved_at": at}
    fields |= {"heads": dict(heads), "tails": dict(tails)} | ({"wanted": True} if wanted else {})
    return with_digest(fields)
