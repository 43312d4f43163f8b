"""A session store that keeps its sessions in another one, sealed.

Rows come sealed from whoever makes them (`SessionStore.seal`), so their links are over ciphertext in every place. This
store hands the bare ciphertext down, refuses what is in plain text, and adds to what it reads the way to the content.
Everything else is the other store's: leases, groups, maintenance, requests, owed work.

Rows without a key are read as well: their chain can be proved, and whoever looks into them is told why that cannot be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from copy import copy
from dataclasses import replace as with_fields
from functools import partial
from threading import Thread

from msgspec.structs import replace

from repertory.backends.encryption.calls import SealedCallBox
from repertory.backends.encryption.row_cipher import RowCipher, key_missing
from repertory.backends.encryption_ports import KeyProvider, KeyRing
from repertory.backends.peer_ports import CallBox, Directory
from repertory.backends.ports import (
    Batch,
    Corruption,
    Inspection,
    Lease,
    OwnedRows,
    Position,
    SalvagedRows,
    SessionEnds,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    UntilFree,
    taken,
)
from repertory.backends.shields import Uncut
from repertory.core.journal.rows import Row
from repertory.core.journal.sealing import LOCKED, Seal, SealedBody, head_of, is_sealed, sealed_journal
from repertory.core.owed import OwedWork, Resting
from repertory.errors import Invalid, KeyErased, KeyMissing, NotFound, RepertoryError


class SealedSessionStore(SessionStore):
    """Wraps any store that keeps rows as they are. It closes the store and the keys."""

    def __init__(self, store: SessionStore, keys: KeyProvider) -> None:
        self._store = store
        self._keys = keys
        self._held: dict[str, RowCipher | None] = {}
        """By session that this object owns: its cipher, as soon as somebody needs it."""
        self._box: SealedCallBox | None = None

    @property
    def name(self) -> str:
        return f"{self._store.name}, encrypted"

    @property
    def capabilities(self) -> StoreCapabilities:
        return replace(self._store.capabilities, seals=True)

    # Keys.

    async def seal(self, session_id: str) -> Seal | None:
        """As `SessionStore.seal`. The session gets its first key here."""
        return (await self._cipher(session_id)).seal

    async def rotate_key(self, session_id: str) -> str:
        keys = await self._keys.keys_of(session_id)
        keys = await self._first_key(session_id) if keys is None else await self._keys.rotate(session_id)
        self._forget_cipher(session_id)
        return keys.current.hex()

    async def erase_key(self, session_id: str) -> None:
        with suppress(KeyErased, KeyMissing):  # Also a key that nothing can unwrap can be erased.
            keys = await self._keys.keys_of(session_id)
            if keys is None or keys.plain_until:
                text = "the session has rows in plain text, from before it was encrypted: delete it instead"
                fields = {} if keys is None else {"until": dict(keys.plain_until)}
                raise Invalid(text, session=session_id, **fields)
        await self._keys.erase(session_id)
        self._forget_cipher(session_id)

    def _forget_cipher(self, session_id: str) -> None:
        if session_id in self._held:
            self._held[session_id] = None

    async def _cipher(self, session_id: str) -> RowCipher:
        cipher = self._held.get(session_id)
        if cipher is None:
            keys = await self._keys.keys_of(session_id)
            cipher = RowCipher(keys if keys is not None else await self._first_key(session_id))
            self._keep(session_id, cipher)
        return cipher

    def _keep(self, session_id: str, cipher: RowCipher) -> None:
        if session_id in self._held:
            self._held[session_id] = cipher

    async def _first_key(self, session_id: str) -> KeyRing:
        """A key for a session that never had one. Errors: `KeyMissing` when sealed rows say that it had."""
        plain_until: dict[str, int] = {}
        found = await self._store.ends(session_id)
        for agent_id, rows in found.rows.items() if found is not None else ():
            sealed = next((row for row in rows if is_sealed(row) and not row.erased), None)
            if sealed is not None:
                keys = await self._keys.keys_of(session_id)
                if keys is not None:  # Another agent of the session has got it meanwhile.
                    return keys
                head = head_of(sealed.body)
                raise key_missing(session_id, None if head is None else head.key_id)
            if rows:
                plain_until[agent_id] = rows[-1].seq
        return await self._keys.create(session_id, plain_until)

    # Rows.

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """As `SessionStore.append`. A batch with a row in plain text is refused with `Invalid`."""
        outcomes: list[Position | RepertoryError | None] = [_refusal(batch) for batch in batches]
        sound = [place for place, outcome in enumerate(outcomes) if outcome is None]
        if sound:
            done = await self._store.append([_bare_batch(batches[place]) for place in sound])
            for place, outcome in zip(sound, done, strict=True):
                outcomes[place] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    async def begin(self, session_id: str, rows: Sequence[Row]) -> None:
        """As `SessionStore.begin`; rows in plain text are sealed, which gives them other links."""
        try:
            cipher = await self._cipher(session_id)
        except LOCKED as error:
            raise taken(session_id) from error
        await self._store.begin(session_id, _bare(_sealed(rows, cipher)))

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        return await self._opened(session_id, await self._store.load(session_id, agent_id, whole=whole))

    async def load_range(self, session_id: str, agent_id: str, first: int, last: int) -> Sequence[Row]:
        return await self._opened(session_id, await self._store.load_range(session_id, agent_id, first, last))

    async def load_at(self, session_id: str, agent_id: str, seq: int) -> Sequence[Row]:
        return await self._opened(session_id, await self._store.load_at(session_id, agent_id, seq))

    async def labels(self, session_id: str, agent_id: str) -> Sequence[Row]:
        return await self._opened(session_id, await self._store.labels(session_id, agent_id))

    async def ends(self, session_id: str) -> SessionEnds | None:
        found = await self._store.ends(session_id)
        if found is None:
            return None
        opened = await self._opener(session_id)
        rows = {agent_id: list(map(opened, each)) for agent_id, each in found.rows.items()}
        (info,) = await self._with_erased([found.info])
        return SessionEnds(info, rows)

    async def own_and_load(self, session_id: str, agent_id: str, *, takeover: bool = False) -> OwnedRows:
        lease, rows = await self._store.own_and_load(session_id, agent_id, takeover=takeover)
        self._held[session_id] = None
        if isinstance(rows, RepertoryError):
            return OwnedRows(lease, rows)
        try:
            return OwnedRows(lease, await self._opened(session_id, rows))
        except RepertoryError as error:
            return OwnedRows(lease, error)
        except BaseException:
            with suppress(RepertoryError), Uncut():
                await self.release(lease)
            raise

    async def _opened(self, session_id: str, rows: Sequence[Row]) -> Sequence[Row]:
        return list(map(await self._opener(session_id), rows)) if rows else rows

    async def _opener(self, session_id: str) -> Callable[[Row], Row]:
        """Adds to a row of the session the way to its content, or the reason why there is none."""
        cipher = self._held.get(session_id)
        if cipher is not None:
            return cipher.opened
        try:
            keys = await self._keys.keys_of(session_id)
        except LOCKED as error:
            return partial(_locked, session_id, error)
        if keys is None:
            return partial(_locked, session_id, None)
        cipher = RowCipher(keys)
        self._keep(session_id, cipher)
        return cipher.opened

    # Sessions.

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        lease = await self._store.acquire(session_id, takeover=takeover)
        self._held[session_id] = None
        return lease

    async def acquire_again(self, lease: Lease) -> bool:
        owned = await self._store.acquire_again(lease)
        if owned:
            self._held[lease.session_id] = None
        return owned

    async def release(self, lease: Lease) -> None:
        self._held.pop(lease.session_id, None)
        await self._store.release(lease)

    async def release_all(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        for lease in leases:
            self._held.pop(lease.session_id, None)
        return await self._store.release_all(leases)

    async def sessions(self, session_id: str | None = None) -> Sequence[SessionInfo]:
        return await self._with_erased(await self._store.sessions(session_id))

    async def session_page(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[SessionInfo]:
        return await self._with_erased(await self._store.session_page(prefix, after=after, limit=limit))

    async def _with_erased(self, infos: Sequence[SessionInfo]) -> Sequence[SessionInfo]:
        erased = await self._keys.erased([info.session_id for info in infos]) if infos else ()
        return (
            [with_fields(info, erased=True) if info.session_id in erased else info for info in infos]
            if erased
            else infos
        )

    async def delete(self, session_id: str) -> None:
        """As `SessionStore.delete`. The keys go first where nobody else owns the session, so what a crash leaves behind
        is unreadable, and still listed.
        """
        found = await self._store.sessions(session_id)
        if not found:
            await self._keys.forget(session_id)
        elif session_id in self._held or found[0].owner is None:
            await self._keys.erase(session_id)
        try:
            await self._store.delete(session_id)
        except NotFound:
            await self._keys.forget(session_id)
            raise
        await self._keys.forget(session_id)
        self._forget_cipher(session_id)

    async def aclose(self) -> None:
        try:
            await self._store.aclose()
        finally:
            with Uncut():
                await self._keys.aclose()

    def abandon(self) -> Thread | None:
        return self._store.abandon()

    async def maintain(self) -> None:
        await self._store.maintain()

    async def asked_for(self) -> Sequence[str]:
        return await self._store.asked_for()

    async def listen(self, asked: Callable[[], None]) -> None:
        await self._store.listen(asked)

    def waiting(self, session_id: str) -> AbstractAsyncContextManager[UntilFree]:
        return self._store.waiting(session_id)

    async def claim_due(
        self,
        now: float,
        limit: int,
        agents: Collection[str],
        resting: Collection[Resting] = (),
        passing: Collection[str] = (),
    ) -> Sequence[OwedWork]:
        return await self._store.claim_due(now, limit, agents, resting, passing)

    async def owed(self, session_id: str | None = None) -> Sequence[OwedWork]:
        return await self._store.owed(session_id)

    # Damage. Chains are proved without keys; a store is made anew from what they prove.

    async def inspect(self) -> Inspection:
        return await self._store.inspect()

    async def examine(self, session_id: str) -> Sequence[Corruption]:
        return await self._store.examine(session_id)

    async def salvage(self, session_id: str) -> SalvagedRows:
        found = await self._store.salvage(session_id)
        return replace(found, rows=await self._opened(session_id, found.rows))

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        if any(_is_plain(row) for row in keep):
            keep = _sealed(keep, await self._cipher(session_id))
        return await self._store.set_aside(session_id, _bare(keep))

    async def quarantined(self, session_id: str) -> Sequence[str]:
        return await self._store.quarantined(session_id)

    async def rebuild(self, keep: Callable[[SalvagedRows], Sequence[Row]]) -> str:
        """As `SessionStore.rebuild`. `keep` is given rows that it cannot look into."""
        return await self._store.rebuild(keep)

    async def corrupt_files(self) -> Sequence[str]:
        return await self._store.corrupt_files()

    # Runtimes that share the sessions.

    def directory(self) -> Directory | None:
        return self._store.directory()

    def call_box(self) -> CallBox | None:
        box = self._store.call_box()
        if box is None:
            return None
        if self._box is None:
            cipher_of: Callable[[str], Awaitable[RowCipher]] = self._cipher
            self._box = SealedCallBox(box, cipher_of)
        return self._box


def _is_plain(row: Row) -> bool:
    return not (is_sealed(row) or row.erased)


def _refusal(batch: Batch) -> Invalid | None:
    for row in batch.rows:
        if _is_plain(row):
            text = "a row in plain text is not stored in an encrypted place: its maker did not ask for the seal"
            return Invalid(text, session=batch.lease.session_id, agent=row.agent_id, seq=row.seq)
    return None


def _bare_batch(batch: Batch) -> Batch:
    return Batch(lease=batch.lease, rows=_bare(batch.rows), erase=batch.erase, due=batch.due)


def _bare(rows: Sequence[Row]) -> list[Row]:
    """The rows without what is in them: the other store never holds a plain text."""
    return [row if type(row[7]) is bytes else Row(*row[:7], bytes(row[7])) for row in rows]


def _sealed(rows: Sequence[Row], cipher: RowCipher) -> list[Row]:
    journals: dict[str, list[Row]] = {}
    for row in rows:
        journals.setdefault(row.agent_id, []).append(row)
    return [row for journal in journals.values() for row in sealed_journal(journal, cipher.seal)]


def _locked(session_id: str, why: RepertoryError | None, row: Row) -> Row:
    if row.erased or not is_sealed(row):
        return row
    return row._replace(body=SealedBody.unopened(row.body, partial(_refuse, session_id, why)))


def _refuse(session_id: str, why: RepertoryError | None, body: bytes) -> bytes:
    if why is not None:
        raise copy(why)
    head = head_of(body)
    raise key_missing(session_id, None if head is None else head.key_id)
