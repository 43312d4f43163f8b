"""A persister whose store is down, slow, or lies: what was accepted waits, in order, and is stored once."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence

import anyio
import pytest
from authors import append
from authors import commit as commit_records

from repertory.actors.leases import Durable, SessionLeases
from repertory.actors.persister import PersisterSettings, ReadImage, SessionPersister, ShortenTimeouts, VerifyLease
from repertory.actors.writer import CommitBuffers, StoreWriter, WriterSettings
from repertory.backends.ports import Batch, Position, give_up
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.rows import Row
from repertory.core.messages import Message
from repertory.core.retry import StorePatience
from repertory.errors import ActorDead, Failed, LeaseLost, RepertoryError, StoreUnavailable, Throttled, Unavailable
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec
from repertory.runtime.system import ActorSystem
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf

pytestmark = pytest.mark.anyio

Outcomes = Sequence[Position | RepertoryError]
Happening = Callable[["ScriptedStore", Sequence[Batch]], Awaitable[Outcomes]]


class ScriptedStore(MemorySessionStore):
    """What happens to each append stands in `script`; when that is over, in `then`; without one it works."""

    def __init__(self, shelf: SessionShelf | None = None, owner: str = "memory") -> None:
        super().__init__(shelf, owner=owner)
        self.script: list[Happening] = []
        self.then: Happening | None = None
        self.attempts: list[list[int]] = []
        """The sequence numbers in each append."""
        self.blind = False
        """Whether it does not even say what is stored."""

    async def append(self, batches: Sequence[Batch]) -> Outcomes:
        self.attempts.append([row.seq for batch in batches for row in batch.rows])
        happening = self.script.pop(0) if self.script else self.then
        return await (happening(self, batches) if happening is not None else self.store(batches))

    async def store(self, batches: Sequence[Batch]) -> Outcomes:
        return await super().append(batches)

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        if self.blind:
            raise Unavailable("down")
        return await super().load(session_id, agent_id, whole=whole)


async def down(store: ScriptedStore, batches: Sequence[Batch]) -> Outcomes:
    del store, batches
    raise Unavailable("down")


async def no_rights(store: ScriptedStore, batches: Sequence[Batch]) -> Outcomes:
    del store, batches
    raise Failed("no rights: allow s3:PutObject")


async def lost_answer(store: ScriptedStore, batches: Sequence[Batch]) -> Outcomes:
    await store.store(batches)
    raise Unavailable("the answer was lost")


async def half_done(store: ScriptedStore, batches: Sequence[Batch]) -> Outcomes:
    """As a store that has no transactions: a part of each batch, and no answer."""
    await store.store([Batch(lease=batch.lease, rows=batch.rows[:1]) for batch in batches])
    raise Unavailable("broke off")


async def hangs(store: ScriptedStore, batches: Sequence[Batch]) -> Outcomes:
    await anyio.sleep(1000)
    return await store.store(batches)


def said(index: int) -> MessageAdded:
    message: Message = {"role": "user" if index % 2 == 0 else "assistant", "content": [{"text": f"m{index}"}]}
    return MessageAdded(at=1000.0 + index, message=message, turn=index // 2 + 1, index=index)


class Setting:
    """A writer and a persister on one store."""

    def __init__(self, system: ActorSystem, store: ScriptedStore, patience: StorePatience | None = None) -> None:
        self.system = system
        self.store = store
        self.buffers = CommitBuffers(patience or StorePatience(wait_s=30))
        self.buffer = self.buffers.of(store.name, "s", "default")

    async def start(self) -> ActorRef[object]:
        writer: ActorRef[object] = await self.system.start(
            ChildSpec(name="writer", factory=lambda: StoreWriter(self.store, WriterSettings()))
        )
        leases = SessionLeases(self.store, busy_s=0)
        self.durable = Durable(store=self.store, leases=leases, writer=writer, buffers=self.buffers)
        return await self.again()

    async def again(self) -> ActorRef[object]:
        settings = PersisterSettings(session_id="s", agent_id="default")

        def factory() -> SessionPersister:
            return SessionPersister(settings, self.durable, random.Random(1).randbytes)

        return await self.system.start(ChildSpec(name="persister", factory=factory, stop_timeout_s=10))

    async def stored(self) -> list[int]:
        self.store.blind = False
        return [row.seq for row in await self.store.load("s", "default", whole=True)]


async def commit(ref: ActorRef[object], *indexes: int, patient: bool = True) -> int:
    return await commit_records(ref, *(said(index) for index in indexes), patient=patient)


async def test_a_short_outage_is_only_a_wait() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.script = [down, down, down]
        began = anyio.current_time()
        assert await commit(ref, 0) == 1
        assert 0 < anyio.current_time() - began < 30
        assert setting.buffer.error is None
        assert setting.store.attempts == [[1], [1], [1], [1]]


async def test_what_waits_is_stored_in_order_behind_what_was_refused() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.script = [down, down]
        await append(ref, said(0), said(1), soon=True)
        await anyio.sleep(0.01)
        await append(ref, said(2), soon=True)
        assert await commit(ref, 3) == 4
        assert setting.store.attempts[0] == setting.store.attempts[2] == [1, 2], "it is tried again as it was"
        assert setting.store.attempts[3:] == [[3, 4]]
        assert await setting.stored() == [1, 2, 3, 4]


async def test_who_has_waited_long_enough_is_told_what_waits_and_why() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore(), StorePatience(wait_s=12))
        ref = await setting.start()
        setting.store.then = down
        began = anyio.current_time()
        with pytest.raises(Unavailable, match=r"try again later session='s' waited_s=12\.0 records=2 .*down") as caught:
            await commit(ref, 0, 1)
        assert anyio.current_time() - began == pytest.approx(12, abs=0.1)
        assert isinstance(caught.value.__cause__, Unavailable)
        with pytest.raises(Unavailable):
            await ref.ask(VerifyLease(), timeout_s=math.inf)
        assert anyio.current_time() - began == pytest.approx(24, abs=0.2), "each waits for itself"
        setting.store.then = None
        await anyio.sleep(5)
        assert await setting.stored() == [1, 2], "what was not acknowledged is stored all the same, once"
        assert await commit(ref, 2) == 3


async def test_those_who_came_later_wait_on() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore(), StorePatience(wait_s=10))
        ref = await setting.start()
        setting.store.then = down
        ends: list[tuple[int, float]] = []

        async def wait(index: int) -> None:
            try:
                await commit(ref, index)
                ends.append((index, math.inf))
            except Unavailable:
                ends.append((index, anyio.current_time()))

        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            for index in range(3):
                group.start_soon(wait, index)
                await anyio.sleep(4)
            await anyio.sleep(4)
            setting.store.then = None
        assert [index for index, _ in ends[:2]] == [0, 1]
        assert [round(at - began) for _, at in ends[:2]] == [10, 14]
        assert ends[2] == (2, math.inf)


async def test_a_lost_answer_is_recognised_by_position_and_nothing_is_stored_twice() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        assert await commit(ref, 0) == 1
        setting.store.script = [lost_answer]
        assert await commit(ref, 1, 2) == 3
        assert await commit(ref, 3) == 4
        assert await setting.stored() == [1, 2, 3, 4]
        assert (await ref.ask(ReadImage(), timeout_s=math.inf)).message_count == 4


async def test_a_commit_that_broke_off_in_the_middle_is_finished() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.script = [half_done, half_done]
        assert await commit(ref, 0, 1, 2, 3) == 4
        assert await setting.stored() == [1, 2, 3, 4]


async def test_a_store_that_does_not_say_what_is_stored_is_asked_until_it_does() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.script = [lost_answer]
        setting.store.blind = True
        await append(ref, said(0), soon=True)
        await anyio.sleep(20)
        assert setting.buffer.count == 1
        setting.store.blind = False
        assert await commit(ref, 1) == 2
        assert await setting.stored() == [1, 2]


async def test_an_owner_that_was_replaced_during_an_outage_is_fenced_and_stores_nothing() -> None:
    shelf = SessionShelf()
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore(shelf, "one"))
        ref = await setting.start()
        setting.store.then = down
        await append(ref, said(0), soon=True)
        await anyio.sleep(3)
        other = MemorySessionStore(shelf, owner="two")
        lease, _ = await other.acquire("s", takeover=True)
        await give_up(other, lease)
        setting.store.then = None
        with pytest.raises(LeaseLost):
            await commit(ref, 1)
        assert await setting.stored() == []
        assert setting.buffer.count == 0


async def test_a_refusal_that_somebody_has_to_mend_is_told_at_once_and_what_was_said_waits() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.then = no_rights
        began = anyio.current_time()
        with pytest.raises(Failed, match="allow s3:PutObject"):
            await commit(ref, 0)
        with pytest.raises(Failed, match="allow s3:PutObject"):
            await commit(ref, 1)
        assert anyio.current_time() == began
        setting.store.then = None
        assert await commit(ref, 2) == 3


async def test_who_does_not_want_to_wait_hears_the_first_refusal() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.then = down
        began = anyio.current_time()
        with pytest.raises(Unavailable):
            await commit(ref, 0, patient=False)
        assert anyio.current_time() == began
        assert setting.buffer.last_seq == 1


async def test_a_caller_prompts_an_attempt() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore(), StorePatience(wait_s=100))
        ref = await setting.start()
        setting.store.then = down
        await append(ref, said(0), soon=True)
        await anyio.sleep(50)
        setting.store.then = None
        began = anyio.current_time()
        assert await commit(ref, 1) == 2
        assert anyio.current_time() == began


async def test_a_store_that_asks_for_fewer_requests_gets_them() -> None:
    async def throttled(store: ScriptedStore, batches: Sequence[Batch]) -> Outcomes:
        del store, batches
        raise Throttled("slow down", retry_after_s=8.0)

    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.script = [throttled]
        began = anyio.current_time()
        await commit(ref, 0)
        assert anyio.current_time() - began == pytest.approx(8.0)


async def test_a_store_that_hangs_keeps_nobody_waiting_for_ever_and_goes_on_when_it_answers() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.script = [hangs]
        began = anyio.current_time()
        with pytest.raises(Unavailable, match="no answer"):
            await commit(ref, 0)
        assert anyio.current_time() - began == pytest.approx(30, abs=0.1)
        assert setting.buffer.error is not None, "the next turn waits before it begins"
        with pytest.raises(Unavailable):
            await commit(ref, 1)
        await anyio.sleep(1000)
        assert await commit(ref, 2) == 3
        assert setting.buffer.error is None
        assert await setting.stored() == [1, 2, 3]


async def test_a_backlog_is_full_by_count_and_by_bytes() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore(), StorePatience(records_max=3))
        ref = await setting.start()
        setting.store.then = down
        await append(ref, said(0), said(1))
        await anyio.sleep(1)
        assert not setting.buffer.full()
        await append(ref, said(2))
        await anyio.sleep(1)
        assert setting.buffer.full()
    small = CommitBuffers(StorePatience(bytes_max=10)).of("store", "s", "default")
    assert not small.full()
    small.unsent = list(setting.buffer.rows[:1])
    assert small.full()


async def test_the_tree_shows_what_waits_and_why() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.then = down
        await append(ref, said(0), said(1), soon=True)
        await anyio.sleep(1)
        (persister,) = [actor for actor in system.tree().walk() if actor.path == ref.path]
        summary = persister.summary
        assert isinstance(summary, dict)
        assert (summary["waiting"], summary["durable"], summary["error"]) == (2, 0, "down")
        assert summary["waiting_bytes"] > 0
        setting.store.then = None
        await commit(ref, 2)
        (persister,) = [actor for actor in system.tree().walk() if actor.path == ref.path]
        assert persister.summary == {"seq": 3, "durable": 3, "waiting": 0}


# The end of a session.


async def test_a_stopping_session_tries_until_the_store_takes_the_rest() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.script = [down, down, lost_answer, half_done]
        await append(ref, said(0), said(1), said(2))
        await system.stop(ref)
        assert await setting.stored() == [1, 2, 3]
        assert setting.buffers.not_stored() == ()


async def test_a_write_under_way_at_the_end_is_neither_doubled_nor_taken_for_granted() -> None:
    for happening in (hangs_shortly, fails_shortly, lost_answer):
        async with ActorSystem() as system:
            setting = Setting(system, ScriptedStore())
            ref = await setting.start()
            setting.store.script = [happening]
            await append(ref, said(0), soon=True)
            await anyio.sleep(0.5)
            await append(ref, said(1))
            await system.stop(ref)
            assert await setting.stored() == [1, 2]
            assert setting.buffers.not_stored() == ()


async def hangs_shortly(store: ScriptedStore, batches: Sequence[Batch]) -> Outcomes:
    await anyio.sleep(1)
    return await store.store(batches)


async def fails_shortly(store: ScriptedStore, batches: Sequence[Batch]) -> Outcomes:
    await anyio.sleep(1)
    return await down(store, batches)


async def test_what_a_stopped_session_could_not_store_is_on_record_and_the_next_one_goes_on_with_it() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        assert await commit(ref, 0, 1) == 2
        setting.store.then = down
        await append(ref, said(2), said(3), said(4))
        began = anyio.current_time()
        await system.stop(ref)
        assert anyio.current_time() - began <= 20
        (told,) = setting.buffers.not_stored()
        assert (told.session_id, told.agent_id, told.records, told.turns) == ("s", "default", 3, (2, 3))
        assert (told.since, told.answered, told.error) == (1002.0, False, "down")
        setting.store.then = None
        ref = await setting.again()
        assert (await ref.ask(ReadImage(), timeout_s=math.inf)).message_count == 5
        await anyio.sleep(1)
        assert await setting.stored() == [1, 2, 3, 4, 5]
        assert setting.buffers.not_stored() == ()


async def test_what_a_killed_persister_held_is_stored_by_the_next_one() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.then = down
        await append(ref, said(0), said(1), soon=True)
        await anyio.sleep(1)
        system.kill(ref)
        await anyio.sleep(1)
        setting.store.then = None
        assert await commit(ref, 2) == 3
        assert await setting.stored() == [1, 2, 3]


async def test_what_was_answered_and_cannot_be_stored_any_more_is_kept_in_mind_until_it_is_told() -> None:
    shelf = SessionShelf()
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore(shelf, "one"))
        ref = await setting.start()
        setting.store.then = down
        await append(ref, said(0), said(1), soon=True)
        setting.buffer.promised = 2
        await anyio.sleep(1)
        other = MemorySessionStore(shelf, owner="two")
        await give_up(other, (await other.acquire("s", takeover=True)).lease)
        setting.store.then = None
        with pytest.raises(LeaseLost):
            await commit(ref, 2)
        (told,) = setting.buffers.not_stored()
        assert (told.records, told.turns, told.answered) == (3, (1, 2), True)
        assert setting.buffer.lost == told
        setting.buffer.lost = None  # As the next turn does, which tells its caller.
        assert setting.buffers.not_stored() == ()


async def test_a_session_that_has_to_end_soon_lets_nobody_wait() -> None:
    async with ActorSystem() as system:
        setting = Setting(system, ScriptedStore())
        ref = await setting.start()
        setting.store.then = down
        errors: list[RepertoryError] = []

        async def wait() -> None:
            try:
                await commit(ref, 0)
            except (Unavailable, ActorDead) as error:
                errors.append(error)

        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(3)
            ref.tell(ShortenTimeouts(wait_s=1))
        await system.stop(ref)
        assert anyio.current_time() - began < 3 + 2.5 + 0.1
        assert [type(error) for error in errors] == [StoreUnavailable]
        assert setting.buffers.not_stored() != ()
