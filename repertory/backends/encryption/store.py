"""A session store that keeps its sessions in another one, sealed.

Rows come sealed from whoever makes them (`Sealing.seal`), so their links are over ciphertext in every place. This store
hands the bare ciphertext down, refuses what is in plain text, and adds to what it reads the way to the content. The
rest is the other store's: its parts are handed on, but for the calls that carry rows.

Rows without a key are read as well: their chain can be proved, and whoever looks into them is told why that cannot be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace as with_fields
from functools import partial
from typing import Concatenate, ParamSpec

from msgspec.structs import replace

from repertory.backends.encryption.calls import SealedCallQueue
from repertory.backends.encryption.row_cipher import RowCipher, key_missing
from repertory.backends.encryption_ports import KeyProvider, KeyRing, Sealing
from repertory.backends.peer_ports import CallQueue
from repertory.backends.ports import (
    Batch,
    IdPage,
    Lease,
    OwnedRows,
    Position,
    Positions,
    SalvagedRows,
    SessionInfo,
    SessionStore,
    StoreCapabilities,
    StoreRepair,
    ends,
)
from repertory.backends.shields import Uncut
from repertory.core.journal.rows import Row
from repertory.core.journal.sealing import LOCKED, Seal, SealedBody, head_of, is_sealed, sealed_journals
from repertory.errors import Invalid, KeyErased, KeyMissing, NotFound, RepertoryError

P = ParamSpec("P")


class SealedSessionStore(SessionStore):
    """Wraps any store that keeps rows as they are. It closes the store and the keys."""

    def __init__(self, store: SessionStore, keys: KeyProvider) -> None:
        self._store = store
        self._keys = keys
        self._held: dict[str, RowCipher | None] = {}
        """The ciphers of sessions that this object owns, by session, each as soon as somebody needs it."""
        self._box: SealedCallQueue | None = None

    @property
    def name(self) -> str:
        return f"{self._store.name}, encrypted"

    @property
    def capabilities(self) -> StoreCapabilities:
        found = self._store.capabilities
        positions, repair, sharing = found.positions, found.repair, found.sharing
        if positions is not None:
            labels = None if positions.labels is None else self._opening(positions.labels)
            load_at, load_range = self._opening(positions.load_at), self._opening(positions.load_range)
            positions = Positions(load_at=load_at, load_range=load_range, labels=labels)
        if repair is not None:  # Chains are proved without keys; a store is made anew from what they prove.
            repair = self._repairing(repair)
        if sharing is not None and sharing.call_queue is not None:
            sharing = replace(sharing, call_queue=partial(self._call_queue, sharing.call_queue))
        sealing = Sealing(seal=self._seal, rotate_key=self._rotate_key, erase_key=self._erase_key)
        return replace(found, positions=positions, repair=repair, sharing=sharing, sealing=sealing)

    def _opening(
        self, load: Callable[Concatenate[str, P], Awaitable[Sequence[Row]]]
    ) -> Callable[Concatenate[str, P], Awaitable[Sequence[Row]]]:
        async def opening(session_id: str, *args: P.args, **options: P.kwargs) -> Sequence[Row]:
            return await self._opened(session_id, await load(session_id, *args, **options))

        return opening

    def _repairing(self, repair: StoreRepair) -> StoreRepair:
        async def salvage(session_id: str) -> SalvagedRows:
            found = await repair.salvage(session_id)
            return replace(found, rows=await self._opened(session_id, found.rows))

        async def set_aside(session_id: str, keep: Sequence[Row]) -> str:
            if any(_is_plain(row) for row in keep):
                keep = sealed_journals(keep, await self._seal(session_id))
            return await repair.set_aside(session_id, _bare(keep))

        return replace(repair, salvage=salvage, set_aside=set_aside)

    # Keys.

    async def _seal(self, session_id: str) -> Seal:
        """The seal of a session's rows, as `Sealing.seal`. The session gets its first key here."""
        return (await self._cipher(session_id)).seal

    async def _rotate_key(self, session_id: str) -> str:
        keys = await self._keys.keys_of(session_id)
        keys = await self._first_key(session_id) if keys is None else await self._keys.rotate(session_id)
        self._forget_cipher(session_id)
        return keys.current.hex()

    async def _erase_key(self, session_id: str) -> None:
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
        found = await ends(self._store, session_id)
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
        """Append as `SessionStore.append` does. A batch with a row in plain text is refused with `Invalid`."""
        outcomes: list[Position | RepertoryError | None] = [_refusal(batch) for batch in batches]
        sound = [index for index, outcome in enumerate(outcomes) if outcome is None]
        if sound:
            bare = [replace(batches[index], rows=_bare(batches[index].rows)) for index in sound]
            done = await self._store.append(bare)
            for index, outcome in zip(sound, done, strict=True):
                outcomes[index] = outcome
                if isinstance(outcome, Position):
                    self._note_owner(batches[index], released=outcome.released)
        return [outcome for outcome in outcomes if outcome is not None]

    def _note_owner(self, batch: Batch, *, released: bool) -> None:
        """A commit was stored: whether it took the session, or gave it up."""
        if released:
            self._held.pop(batch.lease.session_id, None)
        elif batch.take:
            self._held.setdefault(batch.lease.session_id, None)

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        return await self._opened(session_id, await self._store.load(session_id, agent_id, whole=whole))

    async def _opened(self, session_id: str, rows: Sequence[Row]) -> Sequence[Row]:
        # Lazily: rows get the way to their content. Opening a session decrypts what is looked at, not its whole window.
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

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        owned = await self._store.acquire(session_id, takeover=takeover, load=load, again=again)
        # The cipher is made when somebody needs it: acquiring asks no key service.
        self._held[session_id] = None
        if load is None or isinstance(owned.rows, RepertoryError):
            return owned
        try:
            return OwnedRows(owned.lease, await self._opened(session_id, owned.rows))
        except RepertoryError as error:
            return OwnedRows(owned.lease, error)
        except BaseException:
            with suppress(RepertoryError), Uncut():
                await self.release([owned.lease])
            raise

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        for lease in leases:
            self._held.pop(lease.session_id, None)
        return await self._store.release(leases)

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        infos = await self._store.sessions(session_id, page=page)
        erased = await self._keys.erased([info.session_id for info in infos]) if infos else ()
        if not erased:
            return infos
        return [with_fields(info, erased=True) if info.session_id in erased else info for info in infos]

    async def delete(self, session_id: str) -> None:
        """Delete as `SessionStore.delete` does. The keys go first where nobody else owns the session, so what a crash
        leaves behind is unreadable, and still listed.
        """
        found = await self._store.sessions(session_id)
        if not found:
            await self._keys.forget(session_id)
        elif session_id in self._held or found[0].owner is None:
            # Not while another process owns it: that one could no longer read what it writes.
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

    async def maintain(self) -> None:
        await self._store.maintain()

    def _call_queue(self, box: Callable[[], CallQueue]) -> CallQueue:
        if self._box is None:
            self._box = SealedCallQueue(box(), self._cipher)
        return self._box


def _is_plain(row: Row) -> bool:
    return not (is_sealed(row) or row.erased)


def _refusal(batch: Batch) -> Invalid | None:
    for row in batch.rows:
        if _is_plain(row):
            text = "a row in plain text is not stored in an encrypted place: its maker did not ask for the seal"
            return Invalid(text, session=batch.lease.session_id, agent=row.agent_id, seq=row.seq)
    return None


def _bare(rows: Sequence[Row]) -> list[Row]:
    """The rows without what is in them: the other store never holds a plain text."""
    return [row if type(row[7]) is bytes else Row(*row[:7], bytes(row[7])) for row in rows]


def _locked(session_id: str, why: RepertoryError | None, row: Row) -> Row:
    if row.erased or not is_sealed(row):
        return row
    return row._replace(body=SealedBody.unopened(row.body, partial(_refuse, session_id, why)))


def _refuse(session_id: str, why: RepertoryError | None, body: bytes) -> bytes:
    if why is not None:
        raise copy(why)
    head = head_of(body)
    raise key_missing(session_id, None if head is None else head.key_id)
