"""Supervision while it runs: who is restarted, when, in which order, and what happens when it does not help."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import anyio
import pytest

from repertory.errors import ActorFailed, AlreadyExists, NotFound, RestartLimitReached, StartFailed
from repertory.runtime.lifecycle import ExitLimitReached, ExitReason, Normal, State
from repertory.runtime.message import Next, carry_on, reply, stop
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import Backoff, ChildSpec, Restart, Strategy, SupervisorSettings
from repertory.runtime.supervisor import StartChild, StopChild, Supervisor
from repertory.runtime.system import ActorSystem, SystemSettings
from tests.runtime.toys import Add, Crash, CrashAsked, Gate, Nap, Run, Scripted, counter, ended, scripted, settle

pytestmark = pytest.mark.anyio

LENIENT = Backoff(base_s=0.01, limit_s=0.01)


def supervisor(
    children: list[ChildSpec], strategy: Strategy = Strategy.ONE_FOR_ONE, *, intensity: int = 100, **more: int
) -> ChildSpec:
    settings = SupervisorSettings(strategy=strategy, intensity=intensity, failures_max=1000, backoff=LENIENT, **more)
    return ChildSpec(name="sup", factory=lambda: Supervisor(children, settings), restart=Restart.TEMPORARY)


def below(system: ActorSystem, *names: str) -> list[ActorRef[object]]:
    keeper = system._keeper_at("/sup")
    return [keeper.find(name) for name in names]


def running(system: ActorSystem) -> dict[str, int]:
    """Name to incarnation of everything below the supervisor."""
    return {
        actor.path.rpartition("/")[2]: actor.incarnation
        for actor in system.tree().walk()
        if actor.path.startswith("/sup/") and actor.state is State.RUNNING
    }


async def test_children_start_in_order_and_stop_in_reverse() -> None:
    log: list[str] = []
    async with ActorSystem() as system:
        await system.start(supervisor([counter(name, log) for name in "abc"]))
        assert log == ["a started", "b started", "c started"]
        log.clear()
    assert log == ["c stopped: Shutdown", "b stopped: Shutdown", "a stopped: Shutdown"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy.ONE_FOR_ONE, ["b stopped: ExitFailed", "b started"]),
        (
            Strategy.REST_FOR_ONE,
            ["b stopped: ExitFailed", "c stopped: Shutdown", "b started", "c started"],
        ),
        (
            Strategy.ONE_FOR_ALL,
            [
                "b stopped: ExitFailed",
                "c stopped: Shutdown",
                "a stopped: Shutdown",
                "a started",
                "b started",
                "c started",
            ],
        ),
    ],
)
async def test_strategy_says_who_is_restarted(strategy: Strategy, expected: list[str]) -> None:
    log: list[str] = []
    async with ActorSystem() as system:
        await system.start(supervisor([counter(name, log) for name in "abc"], strategy))
        log.clear()
        (b,) = below(system, "b")
        b.tell(Crash())
        await anyio.sleep(1)
        assert log == expected
        log.clear()


async def test_failed_child_does_not_hold_up_its_siblings() -> None:
    """Restarts are scheduled, never slept in the supervisor's loop."""
    patient = SupervisorSettings(intensity=100, failures_max=1000, backoff=Backoff(base_s=600, limit_s=600))

    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    async with ActorSystem(SystemSettings(supervision=patient), rng=Longest()) as system:
        bad = await system.start(counter("bad"))
        bad.tell(Crash())
        await settle()
        assert {actor.state for actor in system.tree().children} == {State.STOPPED}
        good = await system.start(counter("good"))
        assert await good.ask(Add(), timeout_s=1) == 1
        await system.stop(good)
        await anyio.sleep(601)
        assert await bad.ask(Add(), timeout_s=1) == 1


@pytest.mark.parametrize("restart", [Restart.TRANSIENT, Restart.TEMPORARY])
async def test_normal_end_of_a_child_is_final_unless_permanent(restart: Restart) -> None:
    async def last_word(actor: Scripted, message: object) -> Next:
        return stop(reply="bye")

    async with ActorSystem() as system:
        ref = await system.start(scripted(last_word, restart=restart))
        await ref.ask(Run(), timeout_s=1)
        await settle()
        assert ended(ref)
        assert system.tree().children == ()


async def test_permanent_child_is_restarted_after_a_normal_end() -> None:
    async def last_word(actor: Scripted, message: object) -> Next:
        return stop(reply="bye")

    async with ActorSystem() as system:
        ref = await system.start(scripted(last_word))
        for _ in range(2):
            assert await ref.ask(Run(), timeout_s=10) == "bye"


async def test_temporary_sibling_taken_down_with_the_others_stays_down() -> None:
    """OTP: temporary children are never restarted, even if a sibling's death took them down."""
    children = [counter("a"), counter("b", restart=Restart.TEMPORARY), counter("c")]
    async with ActorSystem() as system:
        await system.start(supervisor(children, Strategy.ONE_FOR_ALL))
        a, b = below(system, "a", "b")
        a.tell(Crash())
        await anyio.sleep(1)
        assert running(system) == {"a": 2, "c": 2}
        assert ended(b)


@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
async def test_child_that_is_removed_after_its_restart_failed_does_not_keep_those_behind_it_down(
    strategy: Strategy,
) -> None:
    start, removal, starts = Gate(), Gate(), 0

    class Flaky(Scripted):
        async def on_start(self) -> None:
            nonlocal starts
            starts += 1
            if starts > 1:
                await start.passed()
                raise OSError("not again")

    class Parent(Scripted):
        async def on_start(self) -> None:
            self.context.supervise(SupervisorSettings(strategy=strategy))
            for spec in (counter("a"), ChildSpec(name="b", factory=lambda: Flaky(idle)), counter("c")):
                await self.context.start_child(spec)

    async def idle(actor: Scripted, message: object) -> Next:
        return reply(None)

    async def remove_b(actor: Scripted, message: object) -> Next:
        await removal.passed()
        await actor.context.stop_child("b")  # The decision on its failure waits behind this very handler.
        return reply(None)

    async with ActorSystem() as system:
        parent = await system.start(ChildSpec(name="sup", factory=lambda: Parent(remove_b)))
        a, c = below(system, "a", "c")
        a.tell(Crash())
        await start.reached.wait()
        parent.tell(Run())
        await removal.reached.wait()
        start.open()
        await settle()
        removal.open()
        assert await c.ask(Add(), timeout_s=5) == 1
        assert set(running(system)) == {"a", "c"}


async def test_supervisor_gives_up_after_too_many_restarts_and_fails_upward() -> None:
    reasons: list[ExitReason] = []

    async def watch(actor: Scripted, message: object) -> Next:
        assert isinstance(message, ActorRef)
        actor.context.watch(message)
        return carry_on()

    class Watcher(Scripted):
        async def on_down(self, down: object) -> Next:
            reasons.append(down.reason)
            return carry_on()

    log: list[str] = []
    async with ActorSystem() as system:
        watcher = await system.start(ChildSpec(name="watcher", factory=lambda: Watcher(watch)))
        sup = await system.start(supervisor([counter("a", log), counter("b", log)], intensity=3))
        watcher.tell(sup)
        (b,) = below(system, "b")
        for _ in range(4):
            b.tell(Crash())
        await anyio.sleep(5)
        assert ended(sup)
        assert isinstance(reasons[0], ExitLimitReached)
        assert isinstance(reasons[0].error, RestartLimitReached)
        assert isinstance(reasons[0].error.__cause__, ValueError)
        assert log.count("b started") == 4
        assert log[-1] == "a stopped: Shutdown"


async def test_permanent_supervisor_that_gave_up_is_restarted_by_its_own() -> None:
    spec = supervisor([counter("a")], intensity=0)
    sup = ChildSpec(name="sup", factory=spec.factory)
    async with ActorSystem() as system:
        await system.start(sup)
        (a,) = below(system, "a")
        a.tell(Crash())
        await anyio.sleep(1)
        assert ended(a)
        (successor,) = below(system, "a")
        assert await successor.ask(Add(), timeout_s=1) == 1
        assert system.tree().children[0].incarnation == 2


async def test_root_that_gives_up_raises_out_of_the_block() -> None:
    strict = SystemSettings(supervision=SupervisorSettings(intensity=0))
    with pytest.raises(RestartLimitReached, match="/counter") as caught:
        async with ActorSystem(strict) as system:
            ref = await system.start(counter())
            ref.tell(Crash())
            await anyio.sleep_forever()
    assert isinstance(caught.value.__cause__, ValueError)


async def test_root_that_gives_up_may_call_back_instead() -> None:
    """For servers that would go on answering without their actors."""
    lost: list[Exception] = []
    strict = SystemSettings(supervision=SupervisorSettings(intensity=0), on_fatal=lost.append)
    async with ActorSystem(strict) as system:
        ref = await system.start(counter())
        assert system.healthy
        ref.tell(Crash())
        await anyio.sleep(1)
        assert [type(error) for error in lost] == [RestartLimitReached]
        assert not system.healthy
        assert ended(ref)


async def test_backoff_grows_and_is_forgotten_after_a_healthy_minute() -> None:
    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    starts: list[float] = []

    class Timed(Scripted):
        async def on_start(self) -> None:
            starts.append(anyio.current_time())

    async def crash(actor: Scripted, message: object) -> Next:
        raise ValueError("as ordered")

    many = SystemSettings(supervision=SupervisorSettings(intensity=100))
    async with ActorSystem(many, rng=Longest()) as system:
        ref = await system.start(ChildSpec(name="timed", factory=lambda: Timed(crash)))
        for _ in range(4):
            ref.tell("crash")
        await anyio.sleep(65)
        ref.tell("crash")
        await anyio.sleep(1)
    waits = [after - before for before, after in pairwise(starts)]
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert starts[-1] - starts[0] == pytest.approx(65.1, abs=0.01)


async def test_failed_restarts_count_and_go_on() -> None:
    attempts = 0

    class Flaky(Scripted):
        async def on_start(self) -> None:
            nonlocal attempts
            attempts += 1
            if 1 < attempts < 4:
                raise OSError("not yet")

    async def handle(actor: Scripted, message: object) -> Next:
        if message == "crash":
            raise ValueError("as ordered")
        return reply("alive")

    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="flaky", factory=lambda: Flaky(handle)))
        ref.tell("crash")
        assert await ref.ask(Run(), timeout_s=20) == "alive"
        assert attempts == 4
        assert system.stats().restarts == 3


async def test_rest_for_one_survives_a_failure_in_the_middle_of_a_restart() -> None:
    """The second failure lies before the first one: the restart under way is taken over, and nobody starts twice."""
    log: list[str] = []
    gate = Gate()

    class Slow(Scripted):
        async def on_start(self) -> None:
            log.append("b starting")
            if log.count("b starting") == 1 and log[0] != "a started":
                await gate.passed()

    async def idle(actor: Scripted, message: object) -> Next:
        if message == "crash":
            raise ValueError("as ordered")
        return reply(None)

    children = [counter("a", log), ChildSpec(name="b", factory=lambda: Slow(idle)), counter("c", log)]
    async with ActorSystem() as system:
        await system.start(supervisor(children, Strategy.REST_FOR_ONE))
        a, b = below(system, "a", "b")
        log.clear()
        b.tell("crash")
        await gate.reached.wait()
        a.tell(Crash())
        await anyio.sleep(1)
        gate.open()
        await anyio.sleep(1)
        assert running(system) == {"a": 2, "b": 3, "c": 2}
        assert log.count("c started") == 1


@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
async def test_siblings_that_crash_together_are_restarted_once(strategy: Strategy) -> None:
    async with ActorSystem() as system:
        await system.start(supervisor([counter(name) for name in "abc"], strategy))
        for ref in below(system, "a", "b", "c"):
            ref.tell(Crash())
        await anyio.sleep(1)
        assert set(running(system)) == set("abc")
        assert max(running(system).values()) <= 4
        assert all([await ref.ask(Add(), timeout_s=1) == 1 for ref in below(system, "a", "b", "c")])


async def test_child_that_is_stopped_while_it_restarts_does_not_keep_those_behind_it_down() -> None:
    """Found by the conservation runs: the restart ended with it, and the rest stayed down for ever."""
    gate = Gate()
    starts = 0

    class Slow(Scripted):
        async def on_start(self) -> None:
            nonlocal starts
            starts += 1
            if starts > 1:
                await gate.passed()

    async def idle(actor: Scripted, message: object) -> Next:
        return reply(None)

    children = [counter("a"), ChildSpec(name="b", factory=lambda: Slow(idle)), counter("c")]
    async with ActorSystem() as system:
        await system.start(supervisor(children, Strategy.ONE_FOR_ALL))
        a, b, c = below(system, "a", "b", "c")
        a.tell(Crash())
        await gate.reached.wait()
        await system.stop(b)
        assert await c.ask(Add(), timeout_s=5) == 1
        assert running(system) == {"a": 2, "c": 2}


@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
async def test_sibling_that_fails_during_a_first_start_cuts_that_start_and_leaves_nothing_of_it(
    strategy: Strategy,
) -> None:
    """The starter is told that it failed, so nobody would ever stop the actor if it started again."""
    gate, starts = Gate(), 0

    class Slow(Scripted):
        async def on_start(self) -> None:
            nonlocal starts
            starts += 1
            await gate.passed()

    async def idle(actor: Scripted, message: object) -> Next:
        return carry_on()

    async with ActorSystem() as system:
        parent = await system.start(supervisor([counter("a")], strategy))
        (a,) = below(system, "a")
        async with anyio.create_task_group() as group:

            async def start() -> None:
                with pytest.raises(StartFailed):
                    await system.start(ChildSpec(name="b", factory=lambda: Slow(idle)), under=parent)

            group.start_soon(start)
            await gate.reached.wait()
            a.tell(Crash())
        gate.open()
        await anyio.sleep(1)
        assert running(system) == {"a": 2}
        assert starts == 1


async def test_restart_of_siblings_keeps_what_waits_for_them() -> None:
    answers: list[int] = []
    async with ActorSystem() as system:
        await system.start(supervisor([counter("a"), counter("b")], Strategy.ONE_FOR_ALL))
        a, b = below(system, "a", "b")

        async def add() -> None:
            answers.append(await b.ask(Add(), timeout_s=5))

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: b.ask(Nap(seconds=1), timeout_s=5))
            await settle()
            for _ in range(5):
                group.start_soon(add)
            await settle()
            a.tell(Crash())
        assert running(system) == {"a": 2, "b": 2}
    assert sorted(answers) == [1, 2, 3, 4, 5]


async def test_children_come_and_go_at_run_time() -> None:
    async with ActorSystem() as system:
        sup = await system.start(supervisor([]))
        ref = await sup.ask(StartChild(spec=counter("a")), timeout_s=1)
        assert await ref.ask(Add(), timeout_s=1) == 1
        with pytest.raises(AlreadyExists):
            await sup.ask(StartChild(spec=counter("a")), timeout_s=1)
        await sup.ask(StopChild(name="a"), timeout_s=1)
        assert ended(ref)
        with pytest.raises(NotFound, match="name='a'"):
            await sup.ask(StopChild(name="a"), timeout_s=1)
        other = await system.start(counter("a"), under=sup)
        assert other is not ref
        await system.stop(other)
        await system.stop(other)


async def test_child_in_backoff_can_be_stopped() -> None:
    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    patient = SystemSettings(supervision=SupervisorSettings(backoff=Backoff(base_s=600, limit_s=600)))
    async with ActorSystem(patient, rng=Longest()) as system:
        ref = await system.start(counter())
        ref.tell(Crash())
        await settle()
        ref.tell(Add())
        await system.stop(ref)
        assert ended(ref)
        assert system.dead_letters.tells == 1
        await anyio.sleep(1000)
        assert system.tree().children == ()


async def test_drain_during_backoff_does_not_wait_for_it() -> None:
    """The prototype hung here."""

    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    patient = SystemSettings(supervision=SupervisorSettings(backoff=Backoff(base_s=600, limit_s=600)))
    async with ActorSystem(patient, rng=Longest()) as system:
        ref = await system.start(counter())
        ref.tell(Crash())
        await settle()
        report = await system.drain()
        assert report.duration_s < 1
        assert report.ok


async def test_many_alike_are_stopped_together_when_settings_say_so() -> None:
    class Slow(Scripted):
        async def on_stop(self, reason: ExitReason) -> None:
            await anyio.sleep(1)

    async def idle(actor: Scripted, message: object) -> Next:
        return carry_on()

    specs = [ChildSpec(name=str(number), factory=lambda: Slow(idle)) for number in range(20)]
    settings = SupervisorSettings(stop_together=True)
    async with ActorSystem() as system:
        await system.start(ChildSpec(name="sup", factory=lambda: Supervisor(specs, settings)))
        report = await system.drain()
    assert report.ok
    assert report.duration_s == pytest.approx(1, abs=0.1)


async def test_any_actor_may_have_children_that_end_with_it() -> None:
    log: list[str] = []

    async def parent(actor: Scripted, message: object) -> Next:
        match message:
            case "crash":
                raise ValueError("as ordered")
            case _:
                await actor.context.start_child(counter("child", log))
                with pytest.raises(NotFound):
                    await actor.context.stop_child("nobody")
                return reply(list(actor.context.children()))

    async with ActorSystem() as system:
        ref = await system.start(scripted(parent))
        assert await ref.ask(Run(), timeout_s=1) == ["child"]
        ref.tell("crash")
        await anyio.sleep(1)
        assert log == ["child started", "child stopped: Shutdown"]
        assert await ref.ask(Run(), timeout_s=1) == ["child"]


async def test_failed_child_start_is_told_to_whoever_started_it_and_leaves_nothing() -> None:
    class Broken(Scripted):
        async def on_start(self) -> None:
            raise OSError("no disk")

    async def idle(actor: Scripted, message: object) -> Next:
        return carry_on()

    async with ActorSystem() as system:
        for spec in (
            ChildSpec(name="broken", factory=lambda: Broken(idle)),
            supervisor([counter("a"), ChildSpec(name="broken", factory=lambda: Broken(idle))]),
        ):
            with pytest.raises(StartFailed) as caught:
                await system.start(spec)
            cause: BaseException | None = caught.value
            while isinstance(cause, StartFailed):
                cause = cause.__cause__
            assert repr(cause) == "OSError('no disk')"
        assert system.tree().children == ()
        assert system.stats().restarts == 0


@pytest.mark.parametrize(
    "factory",
    [lambda: "not an actor", lambda: 1 / 0],
    ids=["no actor", "raises"],
)
async def test_factory_that_makes_no_actor_is_a_failed_start(factory: Callable[[], object]) -> None:
    async with ActorSystem() as system:
        with pytest.raises(StartFailed):
            await system.start(ChildSpec(name="odd", factory=factory))


async def test_killed_actor_is_restarted_without_its_last_words() -> None:
    log: list[str] = []
    async with ActorSystem() as system:
        ref = await system.start(counter(log=log))
        system.kill(ref)
        assert await ref.ask(Add(), timeout_s=1) == 1
        assert log == ["counter started", "counter started"]
        log.clear()
        await system.stop(ref)
        assert log == ["counter stopped: Shutdown"]


async def test_exit_of_a_transient_child_is_normal_only_if_it_says_so() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter(restart=Restart.TRANSIENT))
        with pytest.raises(ActorFailed):
            await ref.ask(CrashAsked(), timeout_s=1)
        assert await ref.ask(Add(), timeout_s=1) == 1
        assert Normal() == Normal()
