"""Bounded mailboxes: what each overflow policy does, who waits for room, and what goes first."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from repertory.errors import AskTimeout, Invalid, MailboxFull
from repertory.runtime.cell import BURST
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.message import Ask, Next, Reason, carry_on, reply
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import Gate, Run, Script, Scripted, scripted, settle

pytestmark = pytest.mark.anyio


def bounded(script: Script, overflow: str, capacity: int = 2) -> ChildSpec:
    settings = MailboxSettings(capacity=capacity, overflow=overflow)
    return ChildSpec(name="bounded", factory=lambda: Scripted(script), mailbox=settings)


class Recorder:
    """Records what it handles; a gate holds the first message."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.seen: list[object] = []

    async def handle(self, actor: Scripted, message: object) -> Next:
        await self.gate.passed()
        self.seen.append(message)
        return reply(len(self.seen)) if isinstance(message, Ask) else carry_on()

    async def start_full(self, system: ActorSystem, overflow: str) -> ActorRef[object]:
        """The message 0 is being handled, 1 and 2 fill the mailbox."""
        ref = await system.start(bounded(self.handle, overflow))
        ref.tell(0)
        await self.gate.reached.wait()
        ref.tell(1)
        ref.tell(2)
        return ref


@pytest.mark.parametrize("overflow", ["wait", "reject"])
async def test_tell_to_a_full_mailbox_raises(overflow: str) -> None:
    recorder = Recorder()
    async with ActorSystem() as system:
        ref = await recorder.start_full(system, overflow)
        with pytest.raises(MailboxFull, match="/bounded"):
            ref.tell(3)
        recorder.gate.open()
    assert recorder.seen == [0, 1, 2]


async def test_send_waits_for_room_in_order() -> None:
    recorder = Recorder()
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await recorder.start_full(system, "wait")
        for number in range(3, 9):
            group.start_soon(ref.send, number)
            await settle()
        assert recorder.seen == []
        recorder.gate.open()
        with anyio.fail_after(1):
            while len(recorder.seen) < 9:
                await anyio.lowlevel.checkpoint()
        assert recorder.seen == list(range(9))


async def test_tells_do_not_starve_senders_that_wait() -> None:
    """A place that gets free is kept for the next one; the loop says in which order they then take their places."""
    recorder = Recorder()
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await recorder.start_full(system, "wait")
        for number in (3, 4, 5):
            group.start_soon(ref.send, number)
            await settle()
        recorder.gate.open()
        told = 6
        with anyio.fail_after(5):
            while len(recorder.seen) < 12:
                try:
                    ref.tell(told)
                    told += 1
                except MailboxFull:
                    pass
                await anyio.lowlevel.checkpoint()
    assert recorder.seen[:3] == [0, 1, 2]
    assert {3, 4, 5} <= set(recorder.seen[:10])


async def test_cancelled_send_was_not_sent_and_passes_its_place_on() -> None:
    recorder = Recorder()
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await recorder.start_full(system, "wait")
        with anyio.move_on_after(1):
            await ref.send("cancelled")
        group.start_soon(ref.send, 3)
        await settle()
        recorder.gate.open()
        await ref.ask(Run(), timeout_s=1)
    assert recorder.seen[:4] == [0, 1, 2, 3]
    assert "cancelled" not in recorder.seen


async def test_send_to_a_rejecting_mailbox_does_not_wait() -> None:
    recorder = Recorder()
    async with ActorSystem() as system:
        ref = await recorder.start_full(system, "reject")
        with pytest.raises(MailboxFull):
            await ref.send(3)
        with pytest.raises(MailboxFull):
            await ref.ask(Run(), timeout_s=1)
        recorder.gate.open()


async def test_full_mailbox_that_drops_the_newest_keeps_the_oldest() -> None:
    recorder = Recorder()
    async with ActorSystem() as system:
        ref = await recorder.start_full(system, "drop_newest")
        ref.tell(3)
        with pytest.raises(MailboxFull):
            await ref.ask(Run(), timeout_s=1)
        recorder.gate.open()
        await settle()
        assert recorder.seen == [0, 1, 2]
        assert system.dead_letters.counts == {("Scripted", Reason.FULL): 2}


async def test_full_mailbox_that_drops_the_oldest_keeps_the_newest() -> None:
    recorder = Recorder()
    async with ActorSystem() as system:
        ref = await recorder.start_full(system, "drop_oldest")
        ref.tell(3)
        ref.tell(4)
        recorder.gate.open()
        await settle()
        assert recorder.seen == [0, 3, 4]
        assert system.dead_letters.counts == {("Scripted", Reason.DROPPED): 2}


async def test_ask_waits_for_room_until_its_deadline() -> None:
    recorder = Recorder()
    async with ActorSystem() as system:
        ref = await recorder.start_full(system, "wait")
        began = anyio.current_time()
        with pytest.raises(AskTimeout):
            await ref.ask(Run(), timeout_s=1)
        assert anyio.current_time() - began == pytest.approx(1, abs=0.06)
        recorder.gate.open()
        assert await ref.ask(Run(), timeout_s=1) == 4


async def test_senders_that_wait_are_let_go_when_the_actor_stops() -> None:
    recorder = Recorder()
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await recorder.start_full(system, "wait")
        group.start_soon(ref.send, 3)
        await settle()
        recorder.gate.open()
        await system.stop(ref)
        assert system.dead_letters.tells == 4 - len(recorder.seen)


async def test_many_system_messages_do_not_starve_the_others() -> None:
    """After 64 system messages in a row one other is handled."""
    order: list[str] = []

    async def handle(actor: Scripted, message: object) -> Next:
        if message == "begin":
            for _ in range(3 * BURST):
                actor.context.after(0, "timer")
            await anyio.sleep(1)
        order.append(str(message))
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        ref.tell("begin")
        ref.tell("normal")
        await anyio.sleep(2)
    assert order.count("timer") == 3 * BURST
    assert order.index("normal") == BURST + 1


async def test_system_messages_go_first() -> None:
    order: list[str] = []

    async def handle(actor: Scripted, message: object) -> Next:
        if message == "begin":
            actor.context.after(0, "timer")
            await anyio.sleep(1)
        order.append(str(message))
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        for message in ("begin", "normal", "normal"):
            ref.tell(message)
        await anyio.sleep(2)
    assert order == ["begin", "timer", "normal", "normal"]


async def test_busy_actor_lets_other_tasks_run_every_64_messages() -> None:
    handled = 0
    seen: list[int] = []

    async def handle(actor: Scripted, message: object) -> Next:
        nonlocal handled
        handled += 1
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        for number in range(10 * BURST):
            ref.tell(number)
        while handled < 10 * BURST:
            await anyio.lowlevel.checkpoint()
            seen.append(handled)
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= 2 * BURST


async def test_mailbox_survives_a_restart() -> None:
    """It belongs to the address. The message that failed is not delivered again."""
    seen: list[object] = []

    async def handle(actor: Scripted, message: object) -> Next:
        if message == "crash":
            raise ValueError("as ordered")
        seen.append(message)
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        for message in (1, "crash", 2, "crash", 3):
            ref.tell(message)
        await anyio.sleep(10)
        assert seen == [1, 2, 3]
        assert system.stats().restarts == 2
        assert system.stats().processed == 5


async def test_bound_is_checked_when_settings_are_made() -> None:
    with pytest.raises(Invalid, match="capacity=0"):
        MailboxSettings(capacity=0)
    with pytest.raises(Invalid, match="sideways"):
        MailboxSettings(overflow="sideways")


async def test_take_queued_takes_the_tells_at_the_head_of_the_queue() -> None:
    batches: list[list[object]] = []
    gate = Gate()

    async def handle(actor: Scripted, message: object) -> Next:
        await gate.passed()
        if isinstance(message, Run):
            return reply(None)
        batches.append([message, *actor.context.take_queued(3, int)])
        return carry_on()

    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(scripted(handle))
        for number in range(6):
            ref.tell(number)
        await gate.reached.wait()
        group.start_soon(lambda: ref.ask(Run(), timeout_s=1))
        await settle()
        ref.tell(6)
        ref.tell("other")
        ref.tell(7)
        gate.open()
        await settle()
        assert batches == [[0, 1, 2, 3], [4, 5], [6], ["other", 7]]
        assert system.stats().processed == 10
