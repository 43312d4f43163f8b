"""What a persister takes back: a turn that has only just begun, and contents that must not be kept."""

from __future__ import annotations

import random
from collections.abc import Sequence

import anyio
import pytest
from authors import append, begin, commit, opened

from repertory.actors.leases import Durable, SessionLeases
from repertory.actors.persister import PersisterSettings, ReadHistory, SessionPersister
from repertory.actors.writer import StoreWriter, WriterSettings
from repertory.backends.ports import Batch, Position, give_up
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.redact import without_text
from repertory.core.journal.restore import restore
from repertory.core.messages import Message, text_of
from repertory.errors import LeaseLost, Unavailable
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec
from repertory.runtime.system import ActorSystem
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf

pytestmark = pytest.mark.anyio


class Watched(MemorySessionStore):
    """A store that takes a second per group, keeps what it was given, and may fail."""

    def __init__(self, shelf: SessionShelf | None = None, owner: str = "memory") -> None:
        super().__init__(shelf, owner=owner)
        self.batches: list[Batch] = []
        self.fault = ""

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        await anyio.sleep(1)
        if self.fault == "refused":
            raise Unavailable("the disk is full")
        self.batches.extend(batches)
        outcomes = await super().append(batches)
        if self.fault == "lost":
            raise Unavailable("nobody knows")
        return outcomes

    @property
    def bodies(self) -> bytes:
        """Everything that was ever given to it."""
        return b"".join(row.body for batch in self.batches for row in batch.rows)

    async def stored(self) -> list[str]:
        rows = await self.load("s", "default", whole=True)
        return [text_of(message) for _, message in restore(rows).fold.shown]


def said(index: int, text: str = "") -> MessageAdded:
    role = "user" if index % 2 == 0 else "assistant"
    message: Message = {"role": role, "content": [{"text": text or f"m{index}"}]}
    return MessageAdded(at=float(index), message=message, turn=index // 2 + 1, index=index)


async def persister(system: ActorSystem, store: Watched) -> ActorRef[object]:
    writer: ActorRef[object] = await system.start(
        ChildSpec(name="writer", factory=lambda: StoreWriter(store, WriterSettings()))
    )
    durable = Durable(store=store, leases=SessionLeases(store, busy_s=0), writer=writer)
    settings = PersisterSettings(session_id="s", agent_id="default")
    entropy = random.Random(1).randbytes
    return await system.start(ChildSpec(name="s", factory=lambda: SessionPersister(settings, durable, entropy)))


async def fence(shelf: SessionShelf, *, release: bool) -> Watched:
    other = Watched(shelf, "somebody else")
    lease, _ = await other.acquire("s", takeover=True)
    if release:
        await give_up(other, lease)
    return other


@pytest.mark.parametrize("records", [(), (said(2),)])
async def test_a_turn_that_has_only_just_begun_begins_again_after_another_owner(
    records: tuple[MessageAdded, ...],
) -> None:
    store = Watched()
    async with ActorSystem() as system:
        ref = await persister(system, store)
        await commit(ref, said(0), said(1))
        assert await begin(ref, stored=False) is None
        await fence(store._shelf, release=True)
        journal = await begin(ref, *records, stored=bool(records))
        assert journal is not None
        assert journal.fold.last_seq == 2
        assert await begin(ref, said(2)) is None
        assert await store.stored() == ["m0", "m1", "m2"]


async def test_it_does_not_while_another_owner_is_alive() -> None:
    store = Watched()
    async with ActorSystem() as system:
        ref = await persister(system, store)
        await fence(store._shelf, release=False)
        with pytest.raises(LeaseLost):
            await begin(ref, said(0))
        assert await store.stored() == []


async def test_it_does_not_when_something_older_would_be_lost() -> None:
    store = Watched()
    async with ActorSystem() as system:
        ref = await persister(system, store)
        await append(ref, said(0), said(1))
        await fence(store._shelf, release=True)
        with pytest.raises(LeaseLost):
            await begin(ref, said(2))
        assert await store.stored() == []


async def test_it_does_not_for_a_later_commit_of_the_turn() -> None:
    store = Watched()
    async with ActorSystem() as system:
        ref = await persister(system, store)
        assert await begin(ref, said(0)) is None
        await fence(store._shelf, release=True)
        with pytest.raises(LeaseLost):
            await commit(ref, said(1))


async def test_a_content_that_is_not_on_its_way_yet_never_leaves() -> None:
    store = Watched()
    async with ActorSystem() as system:
        ref = await persister(system, store)
        await append(ref, said(0), said(1))
        await anyio.sleep(0.5)  # The store takes a second for these, and what comes now waits for it.
        later = said(2, "SECRET")
        await append(ref, later)
        assert await redact(ref, later) == 4
        await commit(ref, said(3))
        assert b"SECRET" not in store.bodies
        assert [batch.erase for batch in store.batches] == [(), ()]
        history = await ref.ask(ReadHistory(), timeout_s=60)
        assert [text_of(one) for one in history.messages] == ["m0", "m1", "no", "m3"]
    assert await store.stored() == ["m0", "m1", "no", "m3"]


@pytest.mark.parametrize("fault", ["", "refused", "lost"])
async def test_a_content_that_is_stored_is_destroyed_with_the_next_write(fault: str) -> None:
    """Also by one that is tried again, and by the last one of a session that ends."""
    store = Watched()
    async with ActorSystem() as system:
        ref = await persister(system, store)
        first = said(0, "SECRET")
        await commit(ref, first)
        store.fault = fault
        await redact(ref, first)
        await anyio.sleep(3)
        if not fault:
            assert [list(batch.erase) for batch in store.batches] == [[], [("default", 1)]]
        store.fault = ""
        await system.stop(ref)
    rows = await store.load("s", "default", whole=True)
    assert [row.erased for row in rows] == [True, False]
    assert await store.stored() == ["no"]


async def redact(ref: ActorRef[object], original: MessageAdded) -> int:
    """Take a message back, in a journal of messages alone; gives the last number."""
    journal = await opened(ref)
    journal.redact({original.index + 1: without_text(original.message, "no")}, 9.0)
    await append(ref)
    return journal.fold.last_seq
