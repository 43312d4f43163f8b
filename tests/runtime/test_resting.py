"""Actors that rest: an idle one has no task, and nobody can tell by anything else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import ClassVar

import anyio
import anyio.to_thread
import pytest

from repertory.errors import ActorDead, ActorFailed
from repertory.runtime.actor import Actor
from repertory.runtime.lifecycle import ExitFailed, ExitReason, Killed, Shutdown, State
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.message import Next, carry_on, reply
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec, Restart
from repertory.runtime.supervisor import Supervisor
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import Add, Bump, Counter, CounterMessage, Crash, Gate, Nap, Scripted, Total, settle
from tests.service.living import Living

pytestmark = pytest.mark.anyio

_WHO: ContextVar[str] = ContextVar("who", default="nobody")


class StalledAgent(Counter):
    """A counter that rests."""

    rests: ClassVar[bool] = True


class Quick(Actor[CounterMessage]):
    """Counts at once what it is asked, and leaves the rest to `handle`; writes down how it ends."""

    rests: ClassVar[bool] = True

    def __init__(self, log: list[str], name: str, *, ends_now: bool = True) -> None:
        self._log = log
        self._name = name
        self._ends_now = ends_now
        self.total = 0

    async def on_start(self) -> None:
        _WHO.set(self._name)

    def handle_now(self, message: CounterMessage) -> Next | None:
        if not isinstance(message, Add):
            return None
        self._log.append(f"{_WHO.get()} at once")
        self.total += message.amount
        return reply(self.total)

    async def handle(self, message: CounterMessage) -> Next:
        self._log.append(f"{_WHO.get()} in a task")
        if isinstance(message, Nap):
            self.context.job(anyio.sleep, message.seconds, name="nap")
            return reply("begun")
        if isinstance(message, Crash):
            raise ValueError("asked to")
        self.total += 1
        return reply(self.total) if isinstance(message, Total) else carry_on()

    def stop_now(self, reason: ExitReason) -> bool:
        if self._ends_now:
            self._log.append(f"{self._name} ended")
        return self._ends_now

    async def on_stop(self, reason: ExitReason) -> None:
        await anyio.sleep(1)
        self._log.append(f"{self._name} ended later")


class RestingSupervisor(Supervisor):
    """A supervisor that rests."""

    rests: ClassVar[bool] = True


def family(log: list[str], *, ends_now: bool = True) -> ChildSpec:
    """Two quick actors below a supervisor, all of which rest."""
    first = ChildSpec(name="first", factory=lambda: Quick(log, "first", ends_now=ends_now))
    second = ChildSpec(name="second", factory=lambda: Quick(log, "second"))
    return ChildSpec(name="family", factory=lambda: RestingSupervisor((first, second)))


async def test_an_idle_actor_that_rests_has_no_task_and_stands_in_the_tree_as_running() -> None:
    async with ActorSystem() as system:
        await system.start(ChildSpec(name="other", factory=StalledAgent))
        await anyio.wait_all_tasks_blocked()
        before = Living.now()
        refs = [await system.start(ChildSpec(name=f"{number}", factory=StalledAgent)) for number in range(20)]
        await anyio.wait_all_tasks_blocked()
        assert Living.now().tasks == before.tasks
        assert {actor.state for actor in system.tree().walk()} == {State.RUNNING}
        assert [await ref.ask(Add(), timeout_s=5) for ref in refs] == [1] * 20
        await anyio.wait_all_tasks_blocked()
        assert Living.now().tasks == before.tasks
        assert [child.processed for child in system.tree().children[1:]] == [1] * 20


async def test_messages_of_every_kind_wake_it_and_are_handled_in_order() -> None:
    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="counter", factory=StalledAgent))
        await anyio.wait_all_tasks_blocked()
        for _ in range(100):
            ref.tell(Bump())
        assert await ref.ask(Total(), timeout_s=5) == 100
        await anyio.wait_all_tasks_blocked()
        await ref.send(Bump())
        assert await ref.ask(Total(), timeout_s=5) == 101
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            assert await ref.ask(Nap(seconds=1), timeout_s=5) == "awake"


@pytest.mark.real_time
async def test_a_thread_and_a_callback_of_the_loop_wake_it() -> None:
    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="counter", factory=StalledAgent))
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(ref.tell_threadsafe, Bump())
        with anyio.fail_after(20):
            while system.tree().children[0].processed < 1:
                await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(ref.tell, Bump())
        else:
            ref.tell(Bump())
        with anyio.fail_after(20):
            while system.tree().children[0].processed < 2:
                await anyio.lowlevel.checkpoint()


async def test_each_task_begins_among_the_context_variables_that_the_actor_has_started_with() -> None:
    log: list[str] = []
    _WHO.set("the caller")
    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="quick", factory=lambda: Quick(log, "quick")))
        await anyio.wait_all_tasks_blocked()
        await ref.ask(Add(), timeout_s=5)
        await ref.ask(Total(), timeout_s=5)
    assert log == ["quick at once", "quick in a task", "quick ended"]


async def test_a_timer_wakes_it() -> None:
    class Waking(StalledAgent):
        async def on_start(self) -> None:
            self.context.after(10, Bump())

    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="waking", factory=Waking))
        await anyio.sleep(11)
        assert await ref.ask(Total(), timeout_s=5) == 1


async def test_what_rests_ends_in_the_step_that_stops_it_the_last_child_first() -> None:
    log: list[str] = []
    async with ActorSystem() as system:
        ref = await system.start(family(log))
        first = system.tree().children[0].children[0]
        await anyio.wait_all_tasks_blocked()
        assert system.begin_stop(ref, "no longer needed")
        assert log == ["second ended", "first ended"]
        assert ref.ended == Shutdown("no longer needed")
        assert first.path not in {actor.path for actor in system.tree().walk()}
        assert system.begin_stop(ref)
        with pytest.raises(ActorDead):
            await ref.ask(Add(), timeout_s=5)  # type: ignore[arg-type]
        await system.start(family(log))


async def test_what_has_to_be_waited_for_ends_in_order_in_a_task() -> None:
    log: list[str] = []
    async with ActorSystem() as system:
        ref = await system.start(family(log, ends_now=False))
        await anyio.wait_all_tasks_blocked()
        assert not system.begin_stop(ref)
        assert log == ["second ended"]
        assert ref.ended is None
        await system.stop(ref)
        assert log == ["second ended", "first ended later"]


async def test_a_job_keeps_it_from_ending_at_once_and_is_cancelled_first() -> None:
    log: list[str] = []
    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="quick", factory=lambda: Quick(log, "quick")))
        await ref.ask(Nap(seconds=1000), timeout_s=5)
        await anyio.wait_all_tasks_blocked()
        assert system.tree().children[0].jobs == ("nap",)
        assert not system.begin_stop(ref)
        with anyio.fail_after(5):
            await system.stop(ref)
    assert log[-1] == "quick ended"


async def test_a_killed_one_is_started_again_and_keeps_its_address() -> None:
    log: list[str] = []
    async with ActorSystem() as system:
        spec = ChildSpec(name="counter", factory=lambda: StalledAgent(log), restart=Restart.PERMANENT)
        ref = await system.start(spec)
        await ref.ask(Add(), timeout_s=5)
        await anyio.wait_all_tasks_blocked()
        system.kill(ref)
        ref.tell(Bump())
        await anyio.sleep(60)
        assert log == ["counter started"] * 2
        assert await ref.ask(Total(), timeout_s=5) == 1, "what was told in between is for the next incarnation"


async def test_a_failure_of_a_child_wakes_its_supervisor() -> None:
    log: list[str] = []
    async with ActorSystem() as system:
        ref = await system.start(family(log))
        second = system._keeper_at(ref.path).find("second")
        await anyio.wait_all_tasks_blocked()
        second.tell(Crash())
        await anyio.sleep(60)
        assert await second.ask(Add(), timeout_s=5) == 1
        assert system.stats().restarts == 1


async def test_an_end_that_raises_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy(StalledAgent):
        def stop_now(self, reason: ExitReason) -> bool:
            raise ValueError("dropped it")

    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="clumsy", factory=Clumsy))
        await anyio.wait_all_tasks_blocked()
        with caplog.at_level(logging.ERROR):
            assert system.begin_stop(ref)
        assert isinstance(ref.ended, Shutdown | ExitFailed)
        assert "stop_now failed actor='/clumsy' error='ValueError'" in caplog.text


async def test_one_that_kills_itself_in_a_turn_does_not_rest_instead() -> None:
    kill: list[Callable[[], None]] = []

    class Suicidal(StalledAgent):
        async def handle(self, message: CounterMessage) -> Next:
            kill[0]()
            return carry_on()

    async with ActorSystem() as system:
        ref: ActorRef[Bump] = await system.start(
            ChildSpec(name="suicidal", factory=Suicidal, restart=Restart.TEMPORARY)
        )
        kill.append(lambda: system.kill(ref))
        await anyio.wait_all_tasks_blocked()
        ref.tell(Bump())
        await anyio.sleep(1)
        assert ref.ended == Killed()


@pytest.mark.parametrize("end", ["left", "cancelled"])
async def test_a_system_of_resting_actors_ends_with_its_block(end: str) -> None:
    log: list[str] = []

    async def live(until: Callable[[], Awaitable[None]]) -> None:
        async with ActorSystem() as system:
            for number in range(3):
                spec = family(log)
                await system.start(ChildSpec(name=f"family {number}", factory=spec.factory))
            await until()

    with anyio.move_on_after(10 if end == "cancelled" else 100):
        await live(anyio.sleep_forever if end == "cancelled" else anyio.lowlevel.checkpoint)
    assert sorted(log) == ["first ended"] * 3 + ["second ended"] * 3


async def test_an_ask_that_is_handled_at_once_may_fail_the_actor_while_it_rests() -> None:
    class Fragile(Quick):
        def handle_now(self, message: CounterMessage) -> Next | None:
            raise ValueError("broken")

    async with ActorSystem() as system:
        ref: ActorRef[Add] = await system.start(ChildSpec(name="fragile", factory=lambda: Fragile([], "fragile")))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ActorFailed):
            await ref.ask(Add(), timeout_s=5)
        await anyio.sleep(60)
        assert system.stats().restarts == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_actor_rests_well_when_a_sender_that_had_been_given_room_is_cancelled() -> None:
    gate, seen, senders = Gate(), list[object](), list["asyncio.Task[None]"]()

    class Resting(Scripted):
        rests: ClassVar[bool] = True

    async def handle(actor: Scripted, message: object) -> Next:
        seen.append(message)
        if message == "held":
            await gate.passed()
        for sender in senders if message == "queued" else ():
            sender.cancel()  # It has its place already, and has not run since.
        return carry_on()

    async with ActorSystem() as system:
        spec = ChildSpec(name="resting", factory=lambda: Resting(handle), mailbox=MailboxSettings(capacity=1))
        ref = await system.start(spec)
        ref.tell("held")
        await gate.reached.wait()
        ref.tell("queued")
        senders.append(asyncio.create_task(ref.send("cancelled")))
        await settle()
        gate.open()
        await settle()
        ref.tell("last")
        await settle()
    assert seen == ["held", "queued", "last"]
