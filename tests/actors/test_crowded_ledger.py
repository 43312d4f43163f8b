"""An agent's pen whose persister has more to read than its mailbox holds: nothing is lost, and nobody fails."""

from __future__ import annotations

import random

import pytest

from repertory.actors.backlog import Backlogs
from repertory.actors.durable import Durable
from repertory.actors.leases import Leases
from repertory.actors.ledger import Ledger
from repertory.actors.persister import PersisterSettings, SessionPersister
from repertory.actors.writer import StoreWriter, WriterSettings
from repertory.core.journal.records import MessageAdded
from repertory.core.messages import Message
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.spec import ChildSpec
from repertory.runtime.system import ActorSystem
from repertory.testing.memory_sessions import MemorySessionStore

pytestmark = pytest.mark.anyio


async def test_what_finds_the_persisters_mailbox_full_goes_with_what_comes_next() -> None:
    store, backlogs = MemorySessionStore(), Backlogs()
    async with ActorSystem() as system:
        writer = await system.start(ChildSpec(name="writer", factory=lambda: StoreWriter(store, WriterSettings())))
        durable = Durable(store=store, leases=Leases(store, busy_s=0), writer=writer, backlogs=backlogs)

        def make() -> SessionPersister:
            settings = PersisterSettings(session_id="s", agent_id="default")
            return SessionPersister(settings, durable, random.Random(1).randbytes)

        spec = ChildSpec(name="persister", factory=make, stop_timeout_s=10, mailbox=MailboxSettings(capacity=3))
        persister = await system.start(spec)
        backlog = backlogs.of(store.name, "s", "default")
        ledger = Ledger(persister, 0, lambda: 1000.0, backlog=backlog, durable=True)
        for number in range(10):
            message: Message = {"role": "user", "content": [{"text": str(number)}]}
            ledger.add(MessageAdded(at=1000.0, message=message, index=number, turn=1))
            ledger.hand_over(soon=number % 2 == 0)
        await ledger.commit()
        assert [row.seq for row in await store.load("s", "default", whole=True)] == list(range(1, 11))
