"""An agent's pen whose persister has more to read than its mailbox holds: nothing is lost, and nobody fails."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import anyio
import pytest

from repertory.actors.journal import ActorJournal
from repertory.actors.leases import Durable, SessionLeases
from repertory.actors.persister import PersisterSettings, SessionPersister
from repertory.actors.writer import CommitBuffers, StoreWriter, WriterSettings
from repertory.backends.ports import Batch, Position
from repertory.core.journal.records import CursorMoved, MessageAdded, SnapshotTaken, StateChanged
from repertory.core.journal.restore import RESTATE_AFTER
from repertory.core.journal.rows import RecordKind
from repertory.core.messages import Message
from repertory.errors import RepertoryError
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.spec import ChildSpec
from repertory.runtime.system import ActorSystem
from repertory.testing.in_memory_sessions import MemorySessionStore

pytestmark = pytest.mark.anyio


class HeldStore(MemorySessionStore):
    """Takes no rows before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = anyio.Event()

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        await self.may.wait()
        return await super().append(batches)


async def test_what_memory_notes_during_a_closing_commit_is_stored_behind_what_is_restated_with_it() -> None:
    store, buffers = HeldStore(), CommitBuffers()
    async with ActorSystem() as system:
        writer = await system.start(ChildSpec(name="writer", factory=lambda: StoreWriter(store, WriterSettings())))
        durable = Durable(store=store, leases=SessionLeases(store, busy_s=0), writer=writer, buffers=buffers)
        settings = PersisterSettings(session_id="s", agent_id="default")
        make = partial(SessionPersister, settings, durable, random.Random(1).randbytes)
        persister = await system.start(ChildSpec(name="persister", factory=make))
        buffer = buffers.of(store.name, "s", "default")
        ledger = await ActorJournal.open(persister, lambda: 1000.0, buffer=buffer)
        ledger.add(StateChanged(at=1.0, set={"long": "ago"}))
        for number in range(RESTATE_AFTER + 2):
            ledger.add(SnapshotTaken(at=1.0, label=str(number)))
        async with anyio.create_task_group() as group:
            group.start_soon(partial(ledger.commit, closing=True))
            await anyio.wait_all_tasks_blocked()
            for position in (1, 2):
                ledger.add(CursorMoved(at=1.0, positions={"memory": position}))
                ledger.hand_over(soon=True)
            await anyio.wait_all_tasks_blocked()
            store.may.set()
        seq = ledger.add(CursorMoved(at=1.0, positions={"memory": 3}))
        await ledger.commit()
        rows = await store.load("s", "default", whole=True)
        assert [row.kind for row in rows[-5:]] == [
            RecordKind.SNAPSHOT,
            RecordKind.STATE,
            RecordKind.CURSOR,
            RecordKind.CURSOR,
            RecordKind.CURSOR,
        ]
        assert rows[-1].seq == seq


async def test_what_finds_the_persisters_mailbox_full_goes_with_what_comes_next() -> None:
    store, buffers = MemorySessionStore(), CommitBuffers()
    async with ActorSystem() as system:
        writer = await system.start(ChildSpec(name="writer", factory=lambda: StoreWriter(store, WriterSettings())))
        durable = Durable(store=store, leases=SessionLeases(store, busy_s=0), writer=writer, buffers=buffers)

        def make() -> SessionPersister:
            settings = PersisterSettings(session_id="s", agent_id="default")
            return SessionPersister(settings, durable, random.Random(1).randbytes)

        spec = ChildSpec(name="persister", factory=make, stop_timeout_s=10, mailbox=MailboxSettings(capacity=3))
        persister = await system.start(spec)
        buffer = buffers.of(store.name, "s", "default")
        ledger = await ActorJournal.open(persister, lambda: 1000.0, buffer=buffer)
        for number in range(10):
            message: Message = {"role": "user", "content": [{"text": str(number)}]}
            ledger.add(MessageAdded(at=1000.0, message=message, index=number, turn=1))
            ledger.hand_over(soon=number % 2 == 0)
        await ledger.commit()
        assert [row.seq for row in await store.load("s", "default", whole=True)] == list(range(1, 11))
