"""The kit that tests of actors are written with."""

from __future__ import annotations

import random

import anyio
import pytest

from repertory.errors import ActorDead, ActorFailed, AskTimeout
from repertory.runtime.lifecycle import Shutdown
from repertory.runtime.message import Next, carry_on
from repertory.runtime.ref import Down
from repertory.runtime.spec import ChildSpec
from repertory.runtime.system import ActorSystem
from repertory.runtime.testing.faults import FaultPlan, InjectedFault, Saboteur
from repertory.runtime.testing.probe import Probe
from tests.runtime.toys import Add, Bump, Counter, Run, Scripted, counter, scripted

pytestmark = pytest.mark.anyio


async def test_an_hour_passes_in_no_time_and_in_order() -> None:
    order: list[int] = []

    async def sleep(hours: int) -> None:
        await anyio.sleep(3600 * hours)
        order.append(hours)

    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        for hours in (3, 1, 2):
            group.start_soon(sleep, hours)
    assert order == [1, 2, 3]
    assert anyio.current_time() - began == pytest.approx(3 * 3600)


async def test_deadlock_fails_at_once_on_virtual_time() -> None:
    with pytest.raises(TimeoutError):
        with anyio.fail_after(5):
            await anyio.Event().wait()


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)
async def test_actors_run_on_every_loop(anyio_backend_name: str) -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        assert await ref.ask(Add(), timeout_s=5) == 1
        with pytest.raises(AskTimeout):
            await ref.ask(Add(), timeout_s=0.0)


async def test_probe_records_answers_and_reports() -> None:
    probe = Probe(answer=lambda message: message.amount * 10 if isinstance(message, Add) else None)
    async with ActorSystem() as system:
        ref = await system.start(probe.spec())
        assert await ref.ask(Add(amount=2), timeout_s=1) == 20
        ref.tell(Bump())
        assert await probe.expect(Add) == Add(amount=2)
        assert await probe.expect(Bump) == Bump()
        await probe.expect_nothing(for_s=60)
        ref.tell(Bump())
        with pytest.raises(AssertionError, match="expected Add, received Bump"):
            await probe.expect(Add)
        with pytest.raises(TimeoutError):
            await probe.expect(Add, timeout_s=5)
        ref.tell(Bump())
        with pytest.raises(AssertionError, match="expected nothing"):
            await probe.expect_nothing(for_s=1)
    assert probe.received == [Add(amount=2), Bump(), Bump(), Bump()]
    assert probe.stopped == [Shutdown("the system's block was left")]


async def test_probe_without_answers_leaves_asks_open() -> None:
    probe = Probe()
    async with ActorSystem() as system:
        ref = await system.start(probe.spec())
        with pytest.raises(AskTimeout):
            await ref.ask(Add(), timeout_s=1)


async def test_probe_hears_of_the_end_of_what_it_watches() -> None:
    probe = Probe()
    async with ActorSystem() as system:
        watched = await system.start(counter())
        await system.start(probe.spec())
        probe.watch(watched)
        await system.stop(watched)
        down = await probe.expect(Down)
        assert down.ref is watched


async def test_planned_faults_happen_at_their_messages() -> None:
    async with ActorSystem() as system:
        plan = FaultPlan(
            faults={
                2: InjectedFault.CRASH_BEFORE,
                3: InjectedFault.CRASH_AFTER,
                5: InjectedFault.KILL,
                7: InjectedFault.DELAY,
            },
            delay_s=9,
        )
        saboteur = Saboteur(plan, system.kill)
        ref = await system.start(ChildSpec(name="sabotaged", factory=saboteur.wrap(Counter)))
        began = anyio.current_time()
        outcomes: list[object] = []
        for _ in range(7):
            try:
                outcomes.append(await ref.ask(Add(), timeout_s=60))
            except (ActorFailed, ActorDead) as error:
                outcomes.append(type(error))
        assert outcomes[:4] == [1, ActorFailed, ActorFailed, 1]
        assert outcomes[5:] == [1, 2]
        assert anyio.current_time() - began >= 9


def test_plans_from_the_same_seed_are_the_same() -> None:
    plans = [FaultPlan.from_chance(random.Random(7), messages=1000, rate=0.1) for _ in range(2)]
    assert plans[0] == plans[1]
    assert 60 < len(plans[0].faults) < 140
    assert set(plans[0].faults.values()) == set(InjectedFault)


async def test_sabotaged_actor_keeps_its_life_and_its_looks() -> None:
    async def idle(actor: Scripted, message: object) -> Next:
        return carry_on()

    log: list[str] = []
    async with ActorSystem() as system:
        saboteur = Saboteur(FaultPlan(faults={}), system.kill)
        await system.start(ChildSpec(name="c", factory=saboteur.wrap(lambda: Counter(log, "c"))))
        assert system.tree().children[0].summary == {"total": 0}
        await system.start(scripted(idle))
    assert log == ["c started", "c stopped: Shutdown"]
    assert Run() == Run()
