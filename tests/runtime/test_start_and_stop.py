"""The beginning and the end of one actor: the handshake, the orderly stop, the kill."""

from __future__ import annotations

import math

import anyio
import pytest

from repertory.errors import ActorDead, AlreadyExists, Invalid, NotFound, NotReady, StartFailed
from repertory.runtime.lifecycle import ExitFailed, ExitReason, Killed, Shutdown
from repertory.runtime.message import Next, Reason, carry_on, reply
from repertory.runtime.spec import ChildSpec
from repertory.runtime.supervisor import Supervisor
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import Add, Bump, Gate, Nap, Run, Scripted, counter, ended, scripted, settle

pytestmark = pytest.mark.anyio


async def idle(actor: Scripted, message: object) -> Next:
    return reply(None) if isinstance(message, Run) else carry_on()


class Stuck(Scripted):
    """Never gets ready."""

    def __init__(self) -> None:
        super().__init__(idle)
        self.cancelled = False

    async def on_start(self) -> None:
        await anyio.sleep_forever()


async def test_start_returns_when_the_start_is_acknowledged() -> None:
    log: list[str] = []

    class Ready(Scripted):
        async def on_start(self) -> None:
            await anyio.sleep(1)
            log.append("started")

        async def on_ready(self) -> None:
            log.append("ready")

    async def note(actor: Scripted, message: object) -> Next:
        log.append("message")
        return reply(None)

    async with ActorSystem() as system:
        began = anyio.current_time()
        ref = await system.start(ChildSpec(name="ready", factory=lambda: Ready(note)))
        assert anyio.current_time() - began == pytest.approx(1)
        await ref.ask(Run(), timeout_s=1)
    assert log == ["started", "ready", "message"]


async def test_start_that_takes_too_long_fails_and_leaves_nothing() -> None:
    async with ActorSystem() as system:
        began = anyio.current_time()
        with pytest.raises(StartFailed) as caught:
            await system.start(ChildSpec(name="stuck", factory=Stuck, start_timeout_s=2))
        assert anyio.current_time() - began == pytest.approx(2, abs=0.06)
        assert "too long" in str(caught.value.__cause__)
        assert system.tree().children == ()


async def test_cancelled_start_is_killed() -> None:
    async with ActorSystem() as system:
        with anyio.move_on_after(1):
            await system.start(ChildSpec(name="stuck", factory=Stuck))
        await settle()
        assert system.tree().children == ()
        assert await (await system.start(counter("stuck"))).ask(Add(), timeout_s=1) == 1


async def test_system_that_drains_does_not_wait_for_a_start() -> None:
    async with ActorSystem() as system, anyio.create_task_group() as group:
        outcome: list[type[Exception]] = []

        async def start() -> None:
            with pytest.raises(StartFailed) as caught:
                await system.start(ChildSpec(name="stuck", factory=Stuck, start_timeout_s=math.inf))
            outcome.append(caught.type)

        group.start_soon(start)
        await settle()
        report = await system.drain()
        assert report.duration_s < 1
    assert outcome == [StartFailed]


async def test_actor_that_is_killed_before_its_first_step_never_starts() -> None:
    """A cancel scope made by the child could not be cancelled that early; the supervisor's can."""
    log: list[str] = []
    outcomes: list[Exception | None] = []
    async with ActorSystem() as system:
        ref = system._root.keeper.begin(counter(log=log), outcomes.append)
        system.kill(ref)
        await settle()
        assert ended(ref)
        assert log == []
        assert [type(outcome) for outcome in outcomes] == [StartFailed]


async def test_names_are_unique_among_siblings_and_have_no_slash() -> None:
    async with ActorSystem() as system:
        await system.start(counter())
        with pytest.raises(AlreadyExists, match="counter"):
            await system.start(counter())
        for name in ("", "a/b"):
            with pytest.raises(Invalid):
                counter(name)


async def test_stop_handles_what_waits_and_refuses_what_comes() -> None:
    seen: list[object] = []
    gate = Gate()

    async def note(actor: Scripted, message: object) -> Next:
        await gate.passed()
        seen.append(message)
        return carry_on()

    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(scripted(note))
        for number in range(5):
            ref.tell(number)
        await gate.reached.wait()
        group.start_soon(system.stop, ref)
        await settle()
        ref.tell("late")
        with pytest.raises(ActorDead):
            await ref.ask(Run(), timeout_s=math.inf)
        gate.open()
    assert seen == [0, 1, 2, 3, 4]
    assert [(letter.message, letter.reason) for letter in system.dead_letters.recent()] == [
        ("late", Reason.STOPPED),
        (Run(), Reason.STOPPED),
    ]


async def test_stopping_actor_still_hears_itself() -> None:
    """Results of its jobs come as messages to itself."""
    seen: list[object] = []
    gate = Gate()

    async def work(actor: Scripted, message: object) -> Next:
        seen.append(message)
        if message == "begin":
            await gate.passed()
            actor.context.self_ref.tell("result")
        return carry_on()

    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(scripted(work))
        ref.tell("begin")
        await gate.reached.wait()
        group.start_soon(system.stop, ref)
        await settle()
        gate.open()
    assert seen == ["begin", "result"]


async def test_stop_cuts_a_turn_that_takes_longer_than_its_spec_allows() -> None:
    log: list[str] = []
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(counter(log=log, stop_timeout_s=2))

        async def nap() -> None:
            with pytest.raises(ActorDead):
                await ref.ask(Nap(seconds=1000), timeout_s=math.inf)

        group.start_soon(nap)
        await settle()
        ref.tell(Bump())
        began = anyio.current_time()
        await system.stop(ref)
        assert anyio.current_time() - began == pytest.approx(2, abs=0.06)
    assert log == ["counter started", "counter stopped: Shutdown"]
    assert system.dead_letters.tells == 1


async def test_a_start_that_cannot_be_cut_short_ends_in_order_when_it_was_overtaken_by_a_stop() -> None:
    log: list[str] = []

    class Uncut(Scripted):
        async def on_start(self) -> None:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(5)
            log.append("has what it needs")

        async def on_stop(self, reason: ExitReason) -> None:
            log.append(f"gives it back: {type(reason).__name__}")

    async with ActorSystem() as system, anyio.create_task_group() as group:

        async def start() -> None:
            with pytest.raises(StartFailed):
                await system.start(ChildSpec(name="uncut", factory=lambda: Uncut(idle)), under=above)

        above = await system.start(ChildSpec(name="above", factory=Supervisor))
        group.start_soon(start)
        await anyio.sleep(1)
        await system.stop(above)
    assert log == ["has what it needs", "gives it back: Shutdown"]


async def test_an_actor_whose_start_a_stop_has_cut_short_runs_no_on_stop() -> None:
    log: list[str] = []

    class Slow(Scripted):
        async def on_start(self) -> None:
            try:
                await anyio.sleep(5)
            finally:
                log.append("cleans up after itself")

        async def on_stop(self, reason: ExitReason) -> None:
            log.append("cleans up what it may not have")

    async with ActorSystem() as system, anyio.create_task_group() as group:

        async def start() -> None:
            with pytest.raises(StartFailed):
                await system.start(ChildSpec(name="slow", factory=lambda: Slow(idle)), under=above)

        above = await system.start(ChildSpec(name="above", factory=Supervisor))
        group.start_soon(start)
        await anyio.sleep(1)
        await system.stop(above)
    assert log == ["cleans up after itself"]


async def test_on_stop_has_its_own_time_and_no_more() -> None:
    reasons: list[ExitReason] = []

    class Slow(Scripted):
        async def on_stop(self, reason: ExitReason) -> None:
            reasons.append(reason)
            await anyio.sleep(1000)
            reasons.append(reason)

    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="slow", factory=lambda: Slow(idle), stop_timeout_s=3))
        began = anyio.current_time()
        await system.stop(ref, why="idle")
        assert anyio.current_time() - began == pytest.approx(3, abs=0.06)
        assert reasons == [Shutdown("idle")]
        assert ref.ended == Killed()


async def test_failing_on_stop_makes_an_orderly_end_a_failure() -> None:
    class Clumsy(Scripted):
        async def on_stop(self, reason: ExitReason) -> None:
            raise ValueError("dropped it")

    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="clumsy", factory=lambda: Clumsy(idle)))
        await system.stop(ref)
        assert isinstance(ref.ended, ExitFailed)


async def test_why_of_a_stop_reaches_everything_below() -> None:
    reasons: list[ExitReason] = []

    class Child(Scripted):
        async def on_stop(self, reason: ExitReason) -> None:
            reasons.append(reason)

    async def parent(actor: Scripted, message: object) -> Next:
        await actor.context.start_child(ChildSpec(name="child", factory=lambda: Child(idle)))
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(parent))
        await ref.ask(Run(), timeout_s=1)
        await system.stop(ref, why="idle")
    assert reasons == [Shutdown("idle")]


async def test_stop_answers_queued_asks_with_actor_dead_when_time_is_up() -> None:
    errors: list[type[Exception]] = []
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(counter(stop_timeout_s=1))

        async def ask(message: Nap | Add) -> None:
            with pytest.raises(ActorDead) as caught:
                await ref.ask(message, timeout_s=math.inf)
            errors.append(caught.type)

        group.start_soon(ask, Nap(seconds=1000))
        await settle()
        for _ in range(3):
            group.start_soon(ask, Add())
        await settle()
        await system.stop(ref)
    assert errors == [ActorDead] * 4


async def test_cancelled_stop_goes_on() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter(stop_timeout_s=5))
        with anyio.move_on_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: ref.ask(Nap(seconds=2), timeout_s=5))
                await settle()
                with anyio.move_on_after(1):
                    await system.stop(ref)
                assert not ended(ref)
        await settle()
        assert ended(ref)


async def test_kill_runs_no_on_stop_and_answers_with_actor_dead() -> None:
    log: list[str] = []
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(counter(log=log))

        async def nap() -> None:
            with pytest.raises(ActorDead):
                await ref.ask(Nap(seconds=1000), timeout_s=math.inf)

        group.start_soon(nap)
        await settle()
        system.kill(ref)
        assert await ref.ask(Add(), timeout_s=1) == 1
        assert log == ["counter started", "counter started"]
        assert system.dead_letters.counts == {("Counter", Reason.CANCELLED): 1}


async def test_children_are_started_in_the_systems_context_not_the_spawners() -> None:
    """Otherwise a long-lived actor keeps the first request's tenant and span."""
    from contextvars import ContextVar

    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen: list[str] = []

    class Look(Scripted):
        async def on_start(self) -> None:
            seen.append(tenant.get())

    tenant.set("host")
    async with ActorSystem() as system:
        tenant.set("first request")
        await system.start(ChildSpec(name="look", factory=lambda: Look(idle)))
    assert seen == ["host"]


async def test_unknown_addresses_are_answered_with_not_found() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        with pytest.raises(NotFound):
            await system.start(counter("below"), under=ref)
        with pytest.raises(NotFound, match="other"):
            system._root.keeper.find("other")


async def test_system_that_was_not_opened_says_so() -> None:
    system = ActorSystem()
    with pytest.raises(NotReady, match="async with"):
        await system.start(counter())
    for look in (system.tree, system.stats, lambda: system.dead_letters):
        with pytest.raises(NotReady):
            look()


async def test_stopped_system_starts_nothing() -> None:
    async with ActorSystem() as system:
        await system.drain()
        with pytest.raises(ActorDead):
            await system.start(counter())
