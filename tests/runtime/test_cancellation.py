"""Cancellation from outside: by scopes, and natively on asyncio, where a shield does not help."""

from __future__ import annotations

import asyncio
import math

import anyio
import pytest

from repertory.errors import ActorDead, MailboxFull, RestartLimitReached
from repertory.runtime.drain import DrainPhase
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.message import Next, carry_on, reply
from repertory.runtime.spec import ChildSpec
from repertory.runtime.system import ActorSystem, SystemSettings
from tests.runtime.toys import Add, Gate, Run, Scripted, counter, ended, scripted, settle

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)

SETTINGS = SystemSettings(
    phases=(
        DrainPhase(name="finish", timeout_s=10),
        DrainPhase(name="flush", timeout_s=5, reserve_s=3),
        DrainPhase(name="stop", timeout_s=5, reserve_s=2, stops_actors=True),
    )
)


class Careful(Scripted):
    """Takes a second to write down what it has."""

    def __init__(self, log: list[str]) -> None:
        super().__init__(self._idle)
        self._log = log

    async def _idle(self, actor: Scripted, message: object) -> Next:
        return carry_on()

    async def on_stop(self, reason: ExitReason) -> None:
        await anyio.sleep(1)
        self._log.append(f"written: {type(reason).__name__}")


async def test_scope_that_ends_around_the_block_still_flushes() -> None:
    log: list[str] = []

    async def flush() -> None:
        await anyio.sleep(1)
        log.append("flushed")

    with anyio.move_on_after(5) as scope:
        async with ActorSystem(SETTINGS) as system:
            await system.start(ChildSpec(name="careful", factory=lambda: Careful(log)))
            system.on_shutdown("finish", anyio.sleep_forever)
            system.on_shutdown("flush", flush)
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert log == ["flushed", "written: Shutdown"]


@ASYNCIO
async def test_natively_cancelled_host_still_flushes_however_often_it_is_cancelled() -> None:
    """A second native cancel goes through a shield; so what must not be lost runs in tasks of its own."""
    log: list[str] = []
    entered = asyncio.Event()

    async def flush() -> None:
        await anyio.sleep(1)
        log.append("flushed")

    async def host() -> None:
        async with ActorSystem(SETTINGS) as system:
            await system.start(ChildSpec(name="careful", factory=lambda: Careful(log)))
            system.on_shutdown("flush", flush)
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(host())
    await entered.wait()
    for _ in range(4):
        task.cancel()
        await asyncio.sleep(0.3)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["flushed", "written: Shutdown"]


@ASYNCIO
async def test_host_under_wait_for_times_out_as_expected() -> None:
    log: list[str] = []

    async def host() -> None:
        async with ActorSystem() as system:
            await system.start(ChildSpec(name="careful", factory=lambda: Careful(log)))
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(host(), timeout=5)
    assert log == ["written: Shutdown"]


@ASYNCIO
async def test_native_cancellation_of_an_actors_task_is_a_kill_and_hurts_nobody_else() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter("a"))
        other = await system.start(counter("b"))
        await ref.ask(Add(), timeout_s=1)
        await other.ask(Add(), timeout_s=1)
        for task in asyncio.all_tasks():
            if task.get_name() == "/a":
                task.cancel()
        assert await ref.ask(Add(), timeout_s=5) == 1
        assert await other.ask(Add(), timeout_s=1) == 2


@ASYNCIO
async def test_native_cancellation_in_the_instant_of_a_delivery_loses_nothing() -> None:
    """A portable memory stream loses the message that it has just handed to the receiver."""
    seen: list[object] = []

    async def note(actor: Scripted, message: object) -> Next:
        seen.append(message)
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(note))
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "/scripted"]
        await settle()
        ref.tell("precious")
        task.cancel()
        await ref.ask(Run(), timeout_s=5)
        assert seen[0] == "precious"


@ASYNCIO
async def test_native_cancellation_of_everything_ends() -> None:
    """What `asyncio.run` does to what is left at its end."""
    entered = asyncio.Event()

    async def host() -> None:
        async with ActorSystem() as system:
            await system.start(counter())
            entered.set()
            await asyncio.Event().wait()

    before = asyncio.all_tasks()
    task = asyncio.create_task(host())
    await entered.wait()
    for each in asyncio.all_tasks() - before:
        each.cancel()
    with anyio.fail_after(5), pytest.raises((asyncio.CancelledError, RestartLimitReached)):
        await task
    assert asyncio.all_tasks() == before


@ASYNCIO
async def test_native_cancellation_of_the_root_task_raises_out_of_the_block() -> None:
    with anyio.fail_after(5), pytest.raises(RestartLimitReached, match="root supervisor was killed"):
        async with ActorSystem() as system:
            ref = await system.start(counter())
            for task in asyncio.all_tasks():
                if task.get_name() == "actor system":
                    task.cancel()
            await asyncio.Event().wait()
    assert ended(ref)


@ASYNCIO
async def test_native_cancellation_of_a_job_ends_the_job_alone() -> None:
    async def handle(actor: Scripted, message: object) -> Next:
        actor.context.job(anyio.sleep_forever, name="sleeping")
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        await ref.ask(Run(), timeout_s=1)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "/scripted#sleeping"]
        task.cancel()
        await settle()
        assert system.tree().children[0].jobs == ()
        assert system.stats().restarts == 0


async def test_cancelled_opening_leaves_nothing() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with ActorSystem():
            await anyio.sleep_forever()
    await settle()
    assert len(anyio.get_running_tasks()) <= 3  # the test's own and the test runner's


async def test_cancelled_ask_and_send_leave_no_trace_in_the_mailbox() -> None:
    gate = Gate()

    async def hold(actor: Scripted, message: object) -> Next:
        await gate.passed()
        return reply(None) if isinstance(message, Run) else carry_on()

    async with ActorSystem() as system:
        spec = ChildSpec(name="held", factory=lambda: Scripted(hold), mailbox=MailboxSettings(capacity=1))
        ref = await system.start(spec)
        ref.tell("hold")
        await gate.reached.wait()
        ref.tell("fill")
        for _ in range(10):
            with anyio.move_on_after(0.1):
                await ref.ask(Run(), timeout_s=5)
            with anyio.move_on_after(0.1):
                await ref.send("never")
        gate.open()
        await ref.ask(Run(), timeout_s=1)
        assert system.stats().processed == 3
        assert not any(system._alarms.slots.values())


@ASYNCIO
@pytest.mark.parametrize("granted_first", [True, False])
async def test_sender_that_is_cancelled_when_its_turn_comes_neither_leaks_nor_doubles_its_place(
    granted_first: bool,
) -> None:
    gate = Gate()
    seen: list[object] = []

    async def hold(actor: Scripted, message: object) -> Next:
        await gate.passed()
        seen.append(message)
        return reply(None) if isinstance(message, Run) else carry_on()

    async with ActorSystem() as system:
        spec = ChildSpec(name="held", factory=lambda: Scripted(hold), mailbox=MailboxSettings(capacity=1))
        ref = await system.start(spec)
        ref.tell("held")
        await gate.reached.wait()
        ref.tell("queued")
        sending = asyncio.create_task(ref.send("cancelled"))
        await settle()
        if granted_first:
            ref.mailbox.queue.clear()
            ref.mailbox.admit()
            sending.cancel()
        else:
            sending.cancel()
            ref.mailbox.queue.clear()
            ref.mailbox.admit()
        with pytest.raises(asyncio.CancelledError):
            await sending
        ref.tell("next")
        with pytest.raises(MailboxFull):
            ref.tell("one too many")
        gate.open()
        await ref.ask(Run(), timeout_s=1)
    assert seen[:2] == ["held", "next"]
    assert "cancelled" not in seen


async def test_kill_while_messages_pour_in_answers_every_ask() -> None:
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(counter())
        outcomes: list[object] = []

        async def ask() -> None:
            try:
                outcomes.append(await ref.ask(Add(), timeout_s=math.inf))
            except ActorDead as error:
                outcomes.append(error)

        for number in range(100):
            group.start_soon(ask)
            if number % 10 == 0:
                await anyio.lowlevel.checkpoint()
                system.kill(ref)
        await anyio.sleep(60)
        assert len(outcomes) == 100
