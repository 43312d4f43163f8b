"""The writer and the persister: groups, order, and what happens when a write is refused."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import anyio
import pytest
from authors import append, commit
from msgspec.structs import replace

from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.leases import Durable, SessionLeases
from repertory.actors.persister import PersisterSettings, ReadHistory, ReadImage, SessionPersister
from repertory.actors.writer import StoreWriter, WriterSettings
from repertory.backends.ports import Batch, Position, StoreCapabilities
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.rows import Row
from repertory.core.messages import Message
from repertory.errors import (
    ActorDead,
    ActorFailed,
    Invalid,
    LeaseLost,
    RepertoryError,
    StartFailed,
    StoreUnavailable,
    Unavailable,
    Unwritable,
)
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec, Restart
from repertory.runtime.system import ActorSystem
from repertory.runtime.testing.faults import FaultPlan, InjectedFault, Saboteur
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf

pytestmark = pytest.mark.anyio


class CountingStore(MemorySessionStore):
    """A store that takes a second per group, and notes how many batches each had."""

    def __init__(self, shelf: SessionShelf | None = None, owner: str = "memory") -> None:
        super().__init__(shelf, owner=owner)
        self.groups: list[int] = []
        self.failing = False
        self.broken = False
        self.apart = False

    @property
    def capabilities(self) -> StoreCapabilities:
        return replace(super().capabilities, maintained=self.apart)

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        await anyio.sleep(1)
        if self.failing:
            raise Unavailable("the disk is full")
        if self.broken:
            raise RuntimeError("a bug in the store")
        self.groups.append(len(batches))
        return await super().append(batches)


def said(index: int) -> MessageAdded:
    message: Message = {"role": "user" if index % 2 == 0 else "assistant", "content": [{"text": f"m{index}"}]}
    return MessageAdded(at=float(index), message=message, turn=index // 2 + 1, index=index)


def entropy(count: int) -> bytes:
    return random.Random(1).randbytes(count)


async def start(system: ActorSystem, store: CountingStore) -> Durable:
    writer: ActorRef[object] = await system.start(
        ChildSpec(name="writer", factory=lambda: StoreWriter(store, WriterSettings()))
    )
    return Durable(store=store, leases=SessionLeases(store, busy_s=0), writer=writer)


async def persister(system: ActorSystem, durable: Durable, session_id: str) -> ActorRef[object]:
    settings = PersisterSettings(session_id=session_id, agent_id="default")
    return await system.start(ChildSpec(name=session_id, factory=lambda: SessionPersister(settings, durable, entropy)))


async def rows(store: CountingStore, session_id: str) -> Sequence[Row]:
    return await store.load(session_id, "default", whole=True)


async def test_what_waits_while_a_commit_is_under_way_becomes_the_next_group() -> None:
    store = CountingStore()
    async with ActorSystem() as system:
        durable = await start(system, store)
        sessions = [await persister(system, durable, f"s{number}") for number in range(20)]

        async def say(ref: ActorRef[object]) -> None:
            assert await commit(ref, said(0)) == 1

        async with anyio.create_task_group() as group:
            for ref in sessions:
                group.start_soon(say, ref)
    assert sum(store.groups) == 20
    assert len(store.groups) <= 3


async def test_records_that_nobody_waits_for_are_written_after_a_moment() -> None:
    store = CountingStore()
    async with ActorSystem() as system:
        ref = await persister(system, await start(system, store), "s")
        await append(ref, said(0), said(1))
        await anyio.sleep(2)
        assert store.groups == [1]
        assert len(await rows(store, "s")) == 2


async def test_records_and_the_commit_behind_them_are_one_write() -> None:
    store = CountingStore()
    async with ActorSystem() as system:
        ref = await persister(system, await start(system, store), "s")
        await append(ref, said(0))
        assert await commit(ref, said(1)) == 2
        assert store.groups == [1]


async def test_stopping_writes_what_is_left_and_gives_the_session_up() -> None:
    shelf = SessionShelf()
    store = CountingStore(shelf)
    async with ActorSystem() as system:
        ref = await persister(system, await start(system, store), "s")
        await append(ref, said(0))
        await system.stop(ref)
        assert len(await rows(store, "s")) == 1
        await CountingStore(shelf, "somebody else").acquire("s")


async def test_a_write_that_fails_tells_who_waits_and_is_done_when_the_store_is_back() -> None:
    store = CountingStore()
    async with ActorSystem() as system:
        ref = await persister(system, await start(system, store), "s")
        await commit(ref, said(0))
        store.failing = True
        with pytest.raises(Unavailable, match="records=1"):
            await commit(ref, said(1))
        store.failing = False
        image = await ref.ask(ReadImage(), timeout_s=60)
        assert image.message_count == 2
        assert await commit(ref) == 2
        assert await commit(ref, said(2)) == 3
        assert [row.seq for row in await rows(store, "s")] == [1, 2, 3]


async def test_a_store_that_fails_by_a_bug_keeps_nobody_waiting() -> None:
    store = CountingStore()
    async with ActorSystem() as system:
        ref = await persister(system, await start(system, store), "s")
        store.broken = True
        with pytest.raises(Unwritable, match="a bug in the store"):
            await commit(ref, said(0))
        store.broken = False
        assert await commit(ref, said(0)) == 1


class PickyStore(CountingStore):
    """A store that raises for what one session says, before or after it has stored the rest of the group."""

    def __init__(self, error: Exception, *, late: bool) -> None:
        super().__init__()
        self._error = error
        self._late = late

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        bad = [batch for batch in batches if batch.lease.session_id == "bad"]
        if bad and self._late:
            await super().append([batch for batch in batches if batch not in bad])
        if bad:
            raise self._error
        return await super().append(batches)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        TypeError("no JSON"),
        OverflowError("64 bits"),
        RecursionError("deep"),
        ExceptionGroup("side by side", [KeyError(1)]),
        Invalid("bad id"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_store_cannot_write_fails_its_own_session_alone(error: Exception, late: bool) -> None:
    store = PickyStore(error, late=late)
    failures: list[Exception] = []
    async with ActorSystem() as system:
        durable = await start(system, store)
        sessions = [await persister(system, durable, name) for name in ("a", "bad", "b", "c")]

        async def say(ref: ActorRef[object]) -> None:
            try:
                assert await commit(ref, said(0)) == 1
            except RepertoryError as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            for ref in sessions:
                group.start_soon(say, ref)
        assert [isinstance(failure, Unwritable | Invalid) for failure in failures] == [True]
        for name in ("a", "b", "c"):
            assert len(await rows(store, name)) == 1
        assert await commit(sessions[0], said(1)) == 2


async def test_a_fenced_persister_loses_its_lease_and_stores_nothing() -> None:
    shelf = SessionShelf()
    store = CountingStore(shelf)
    async with ActorSystem() as system:
        ref = await persister(system, await start(system, store), "s")
        other = CountingStore(shelf, "somebody else")
        await other.acquire("s", takeover=True)
        with pytest.raises(LeaseLost):
            await commit(ref, said(0))
        assert await rows(store, "s") == []


async def test_a_session_in_other_hands_does_not_start() -> None:
    shelf = SessionShelf()
    await CountingStore(shelf, "somebody else").acquire("s")
    async with ActorSystem() as system:
        with pytest.raises(StartFailed):
            await persister(system, await start(system, CountingStore(shelf)), "s")


async def test_a_memory_journal_outlasts_its_persister() -> None:
    journal = InMemoryJournal()
    settings = PersisterSettings(session_id="s", agent_id="default")
    spec = ChildSpec(name="p", factory=lambda: SessionPersister(settings, journal, entropy))
    async with ActorSystem() as system:
        ref = await system.start(spec)
        await commit(ref, said(0))
        await system.stop(ref)
    async with ActorSystem() as system:
        ref = await system.start(spec)
        assert len((await ref.ask(ReadHistory(), timeout_s=math.inf)).messages) == 1


@pytest.mark.parametrize("fault", [InjectedFault.CRASH_BEFORE, InjectedFault.CRASH_AFTER, InjectedFault.KILL])
@pytest.mark.parametrize("apart", [False, True], ids=["one group after the other", "groups side by side"])
async def test_a_write_that_is_lost_with_its_writer_is_written_once_and_its_session_goes_on(
    fault: InjectedFault, apart: bool
) -> None:
    store = CountingStore()
    store.apart = apart
    async with ActorSystem() as system:
        saboteur = Saboteur(FaultPlan(faults={1: fault, 3: fault}), system.kill)
        factory = saboteur.wrap(lambda: StoreWriter(store, WriterSettings()))
        writer: ActorRef[object] = await system.start(ChildSpec(name="writer", factory=factory))
        durable = Durable(store=store, leases=SessionLeases(store, busy_s=0), writer=writer)
        sessions = {name: await persister(system, durable, name) for name in ("s", "t", "u")}
        outcomes: list[object] = []

        async def say(ref: ActorRef[object], index: int) -> None:
            try:
                outcomes.append(await commit(ref, said(index)))
            except RepertoryError as error:
                outcomes.append(error)

        for index in range(3):
            async with anyio.create_task_group() as group:
                for ref in sessions.values():
                    group.start_soon(say, ref, index)
        assert outcomes == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        for name in sessions:
            assert [row.seq for row in await rows(store, name)] == [1, 2, 3]


async def test_the_lanes_of_a_burst_of_groups_are_dropped_by_the_next_group() -> None:
    store = CountingStore()
    store.apart = True
    writers: list[StoreWriter] = []

    def make() -> StoreWriter:
        writers.append(StoreWriter(store, WriterSettings()))
        return writers[-1]

    async with ActorSystem() as system:
        writer: ActorRef[object] = await system.start(ChildSpec(name="writer", factory=make))
        durable = Durable(store=store, leases=SessionLeases(store, busy_s=0), writer=writer)
        sessions = [await persister(system, durable, f"s{number}") for number in range(5)]
        async with anyio.create_task_group() as group:
            for ref in sessions:
                group.start_soon(commit, ref, said(0))
                await anyio.sleep(0.1)  # So that each is a group of its own.
        assert store.groups == [1] * 5
        assert len(writers[0]._lanes) == 5
        await commit(sessions[0], said(1))
        assert len(writers[0]._lanes) == 1
        assert await commit(sessions[1], said(1)) == 2


async def test_a_writer_that_has_ended_for_good_is_an_error_for_who_waits_for_it() -> None:
    store = CountingStore()
    async with ActorSystem() as system:
        spec = ChildSpec(name="writer", factory=lambda: StoreWriter(store, WriterSettings()), restart=Restart.TEMPORARY)
        writer: ActorRef[object] = await system.start(spec)
        durable = Durable(store=store, leases=SessionLeases(store, busy_s=0), writer=writer)
        ref = await persister(system, durable, "s")

        async def say() -> None:
            with pytest.raises((ActorDead, ActorFailed, StoreUnavailable)):
                await commit(ref, said(0))

        async with anyio.create_task_group() as group:
            group.start_soon(say)
            await anyio.sleep(0.5)
            system.kill(writer)
        await system.stop(ref)
