"""The stores that a host has open, each with its writer actor, for as long as a session uses them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio

from repertory.actors.leases import Durable, Leases
from repertory.actors.writer import StoreWriter, WriterSettings, keeper_spec
from repertory.errors import Retryable
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.spec import ChildSpec

if TYPE_CHECKING:
    from repertory.actors.backlog import Backlogs
    from repertory.app.sessions import SessionPlace
    from repertory.runtime.ref import ActorRef
    from repertory.runtime.system import ActorSystem


_MAILBOX = MailboxSettings(capacity=100_000)
"""Each session has at most one write waiting, so this bounds the active sessions of one store."""


@dataclass(slots=True)
class _OpenStore:
    durable: Durable
    writer: ActorRef[object]
    keeper: ActorRef[object] | None = None
    users: int = 0


class OpenStores:
    """One store and one writer per database, whoever asks."""

    def __init__(
        self, system: ActorSystem, backlogs: Backlogs, give_up: Callable[[str, str], Awaitable[None]] | None
    ) -> None:
        """`give_up` is called with the key of a store and a session in it that another process asks for; None: nobody
        is heard.
        """
        self._system = system
        self._asked = give_up
        self._backlogs = backlogs
        self._open: dict[str, _OpenStore] = {}
        self._started = 0
        self._lock = anyio.Lock()

    async def enter(self, sessions: SessionPlace) -> Durable:
        """The store, opened when it is not, and one more user of it."""
        async with self._lock:
            entry = self._open.get(sessions.key)
            if entry is None:
                entry = self._open[sessions.key] = await self._start(sessions)
            entry.users += 1
            return entry.durable

    async def leave(self, key: str, *, keep: bool) -> None:
        """One user less; the last one closes the store unless it is to be kept."""
        async with self._lock:
            entry = self._open[key]
            entry.users -= 1
            if not entry.users and not keep:
                await self._close(key)

    async def give_up_owed(self, key: str, session_id: str) -> None:
        """Give a session up that nobody uses, if that could not be done before. What fails is done the next time."""
        entry = self._open.get(key)
        if entry is not None:
            with suppress(Retryable):
                await entry.durable.leases.give_up_owed(session_id)

    async def close_all(self) -> None:
        """Close every store. Nobody may use one any more, and the writers have ended."""
        async with self._lock:
            while self._open:
                _, entry = self._open.popitem()
                await entry.durable.store.aclose()

    async def _start(self, sessions: SessionPlace) -> _OpenStore:
        store = sessions.open_store()

        def writer() -> StoreWriter:
            return StoreWriter(store, WriterSettings())

        self._started += 1
        spec = ChildSpec(name=f"writer {self._started}", factory=writer, mailbox=_MAILBOX)
        ref = await self._system.start(spec)
        give_up = partial(self._asked, sessions.key) if self._asked is not None else None
        keeping = keeper_spec(store, f"keeper {self._started}", give_up)
        keeper = await self._system.start(keeping) if keeping is not None else None
        leases = Leases(store, busy_s=self._backlogs.patience.busy_s)
        durable = Durable(store=store, leases=leases, writer=ref, backlogs=self._backlogs)
        return _OpenStore(durable, ref, keeper)

    async def _close(self, key: str) -> None:
        entry = self._open.pop(key)
        if entry.keeper is not None:
            await self._system.stop(entry.keeper)
        await self._system.stop(entry.writer)
        await entry.durable.store.aclose()
