"""Draining a whole system: phases, hooks, deadlines, reserves, and the report."""

from __future__ import annotations

import anyio
import pytest

from repertory.errors import ActorDead, Invalid
from repertory.runtime.drain import DrainPhase
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.message import Next, carry_on
from repertory.runtime.spec import ChildSpec
from repertory.runtime.supervisor import Supervisor
from repertory.runtime.system import ActorSystem, SystemSettings
from tests.runtime.toys import Bump, Gate, Nap, Scripted, counter, scripted, settle

pytestmark = pytest.mark.anyio

SETTINGS = SystemSettings(
    phases=(
        DrainPhase(name="refuse", timeout_s=1),
        DrainPhase(name="finish", timeout_s=10),
        DrainPhase(name="flush", timeout_s=5, reserve_s=3),
        DrainPhase(name="stop", timeout_s=5, reserve_s=2, stops_actors=True),
        DrainPhase(name="close", timeout_s=2, reserve_s=1),
    ),
    grace_s=20,
)


async def test_hooks_run_phase_by_phase_and_actors_stop_in_theirs() -> None:
    log: list[str] = []

    def note(text: str, after_s: float = 0.0) -> object:
        async def hook() -> None:
            await anyio.sleep(after_s)
            log.append(text)

        return hook

    async with ActorSystem(SETTINGS) as system:
        await system.start(counter(log=log))
        for phase in ("close", "flush", "refuse"):
            system.on_shutdown(phase, note(phase))
        system.on_shutdown("finish", note("finish, slower", 2))
        system.on_shutdown("finish", note("finish, faster", 1))
        report = await system.drain("deploy")
    assert log == [
        "counter started",
        "refuse",
        "finish, faster",
        "finish, slower",
        "flush",
        "counter stopped: Shutdown",
        "close",
    ]
    assert report.ok
    assert report.reason == "deploy"
    assert [phase.name for phase in report.phases] == [phase.name for phase in SETTINGS.phases]
    assert report.duration_s == pytest.approx(2, abs=0.01)


async def test_leaving_the_block_drains() -> None:
    log: list[str] = []
    async with ActorSystem() as system:
        ref = await system.start(counter(log=log))
        for _ in range(100):
            ref.tell(Bump())
    assert log[-1] == "counter stopped: Shutdown"
    assert system.stats().processed == 100
    assert system.stats().dead_letters == {}


async def test_error_of_the_body_goes_on_as_it_is_after_the_drain() -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match=r"^the body's$"):
        async with ActorSystem() as system:
            await system.start(counter(log=log))
            raise ValueError("the body's")
    assert log[-1] == "counter stopped: Shutdown"


async def test_drain_is_done_once_and_everybody_gets_its_report() -> None:
    reports: list[object] = []
    async with ActorSystem() as system, anyio.create_task_group() as group:

        async def drain(reason: str) -> None:
            reports.append(await system.drain(reason))

        for reason in ("a", "b", "c"):
            group.start_soon(drain, reason)
    assert len({id(report) for report in reports}) == 1


async def test_hook_that_takes_too_long_is_cut_and_reported() -> None:
    async def hang() -> None:
        await anyio.sleep_forever()

    async with ActorSystem(SETTINGS) as system:
        system.on_shutdown("finish", hang)
        report = await system.drain()
    assert not report.ok
    finish = report.phases[1]
    assert not finish.completed
    assert finish.duration_s == pytest.approx(10)
    assert "hang" in report.unfinished[0]
    assert all(phase.completed for phase in report.phases if phase is not finish)


async def test_hook_that_raises_is_reported_and_the_next_phase_comes() -> None:
    async def crash() -> None:
        async with anyio.create_task_group():
            raise OSError("no disk")

    async with ActorSystem(SETTINGS) as system:
        system.on_shutdown("refuse", crash)
        report = await system.drain()
    assert not report.phases[0].completed
    assert "OSError('no disk')" in report.phases[0].errors[0]
    assert report.phases[0].unfinished == ()
    assert all(phase.completed for phase in report.phases[1:])


async def test_earlier_phases_never_eat_a_later_phases_reserve() -> None:
    got: list[float] = []

    async def hang() -> None:
        await anyio.sleep_forever()

    async def flush() -> None:
        began = anyio.current_time()
        try:
            await anyio.sleep_forever()
        finally:
            got.append(anyio.current_time() - began)

    tight = SystemSettings(phases=SETTINGS.phases, grace_s=7)
    async with ActorSystem(tight) as system:
        for phase in ("refuse", "finish", "close"):
            system.on_shutdown(phase, hang)
        system.on_shutdown("flush", flush)
        report = await system.drain()
    assert got[0] >= 3
    assert report.duration_s <= 7.01


async def test_cut_short_drain_goes_straight_to_what_has_a_reserve() -> None:
    log: list[str] = []

    async def hang() -> None:
        await anyio.sleep_forever()

    async def flush() -> None:
        log.append("flush")

    async with ActorSystem(SETTINGS) as system, anyio.create_task_group() as group:
        await system.start(counter(log=log))
        for phase in ("refuse", "finish"):
            system.on_shutdown(phase, hang)
        system.on_shutdown("flush", flush)
        system.on_shutdown("close", hang)
        began = anyio.current_time()
        group.start_soon(system.drain)
        await anyio.sleep(0.5)
        system.cut_short()
        report = await system.drain()
        assert anyio.current_time() - began == pytest.approx(0.5 + 1, abs=0.1)
    assert report.cut_short
    assert log == ["counter started", "flush", "counter stopped: Shutdown"]
    assert [phase.name for phase in report.phases if not phase.completed] == ["refuse", "finish", "close"]


async def test_actors_that_do_not_stop_in_time_are_killed_and_named() -> None:
    class Stubborn(Scripted):
        async def on_stop(self, reason: ExitReason) -> None:
            await anyio.sleep_forever()

    async def idle(actor: Scripted, message: object) -> Next:
        return carry_on()

    stubborn = ChildSpec(name="stubborn", factory=lambda: Stubborn(idle), stop_timeout_s=1000)
    inside = ChildSpec(name="sup", factory=lambda: Supervisor([counter("first"), stubborn, counter("last")]))
    async with ActorSystem(SETTINGS) as system:
        await system.start(inside)
        report = await system.drain()
    assert report.unfinished == ("/sup/first", "/sup/stubborn")
    assert report.phases[3].duration_s == pytest.approx(5, abs=0.1)


async def test_report_counts_what_died_in_the_drain() -> None:
    async with ActorSystem(SETTINGS) as system, anyio.create_task_group() as group:
        ref = await system.start(counter(stop_timeout_s=1))

        async def nap() -> None:
            with pytest.raises(ActorDead):
                await ref.ask(Nap(seconds=1000), timeout_s=2000)

        group.start_soon(nap)
        await settle()
        ref.tell(Bump())
        report = await system.drain()
    assert report.dead_letters == {"cancelled": 1, "stopped": 1}


async def test_drain_in_the_middle_of_starts_and_restarts_ends() -> None:
    gate = Gate()

    class Slow(Scripted):
        async def on_start(self) -> None:
            await gate.passed()

    async def idle(actor: Scripted, message: object) -> Next:
        return carry_on()

    async with ActorSystem() as system, anyio.create_task_group() as group:

        async def start() -> None:
            with pytest.raises(Exception, match=r"did not start|stopping|stopped"):
                await system.start(ChildSpec(name="slow", factory=lambda: Slow(idle)))

        group.start_soon(start)
        await gate.reached.wait()
        report = await system.drain()
        assert report.ok
        group.start_soon(start)


async def test_phase_that_does_not_exist_is_refused() -> None:
    async with ActorSystem(SETTINGS) as system:
        with pytest.raises(Invalid, match="refuse"):
            system.on_shutdown("unheard of", anyio.sleep_forever)


async def test_readiness_ends_with_the_first_moment_of_a_drain() -> None:
    seen: list[bool] = []
    async with ActorSystem(SETTINGS) as system:

        async def look() -> None:
            seen.append(system.healthy)

        seen.append(system.healthy)
        system.on_shutdown("refuse", look)
    assert seen == [True, False]


async def test_nothing_is_left_running() -> None:
    async def busy(actor: Scripted, message: object) -> Next:
        actor.context.job(anyio.sleep_forever)
        actor.context.every(1, "tick")
        await actor.context.start_child(counter("child"))
        return carry_on()

    before = {task.id for task in anyio.get_running_tasks()}
    async with ActorSystem() as system:
        ref = await system.start(scripted(busy))
        ref.tell("begin")
        await settle()
    await settle()
    assert {task.id for task in anyio.get_running_tasks()} == before
