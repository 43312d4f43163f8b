"""Stores and leases for the length of one operation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio

from repertory.backends.ports import Batch, Lease, SessionStore, TendedStore
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from repertory.app.sessions.sessions import SessionPlace
    from repertory.core.journal.rows import Row


@asynccontextmanager
async def opened(place: SessionPlace) -> AsyncGenerator[SessionStore]:
    """A store on the place, tended where its leases end by themselves, and closed in the end."""
    store = place.open_store()
    try:
        async with _Tended(store):
            yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


class _Tended:
    """Tends a store, if it is one of those, for as long as the block. What the block raises stays what it is, where a
    task group around it would wrap it.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> None:
        await self._tasks.__aenter__()
        if isinstance(self._store, TendedStore):
            self._tasks.start_soon(self._store.tend)

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)


@asynccontextmanager
async def owned(store: SessionStore, session_id: str, *, takeover: bool) -> AsyncGenerator[Lease]:
    """A lease on a session, given up in the end. Errors: `SessionBusy` when a live owner has it."""
    lease = await store.acquire(session_id, takeover=takeover)
    try:
        yield lease
    finally:
        with anyio.CancelScope(shield=True), suppress(RepertoryError):  # it ends by itself then
            await store.release(lease)


async def commit(store: SessionStore, lease: Lease, rows: Sequence[Row], erase: Sequence[tuple[str, int]] = ()) -> None:
    """Store rows and destroy contents, all or nothing, and be sure of having owned the session until that was done.

    Errors: `LeaseLost`, those of the store.
    """
    proof = [Batch(lease=lease, rows=())] if isinstance(store, TendedStore) else []  # Its leases end by themselves.
    for batch in (Batch(lease=lease, rows=rows, erase=erase), *proof):
        (outcome,) = await store.append([batch])
        if isinstance(outcome, RepertoryError):
            raise outcome
