"""Background work of an actor: beside its turns, and never beyond its end."""

from __future__ import annotations

import math

import anyio
import pytest

from repertory.errors import ActorFailed, Invalid
from repertory.runtime.actor import Job
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.message import Next, carry_on, reply
from repertory.runtime.spec import ChildSpec
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import Add, Gate, Run, Scripted, counter, scripted, settle

pytestmark = pytest.mark.anyio


async def test_job_runs_beside_the_turns() -> None:
    gate = Gate()

    async def handle(actor: Scripted, message: object) -> Next:
        if message == "begin":
            actor.context.job(gate.passed, name="waiting")
            return carry_on()
        return reply("alive")

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        ref.tell("begin")
        await gate.reached.wait()
        assert await ref.ask(Run(), timeout_s=1) == "alive"
        assert system.tree().children[0].jobs == ("waiting",)
        gate.open()
        await settle()
        assert system.tree().children[0].jobs == ()


async def test_jobs_are_cancelled_and_joined_before_on_stop() -> None:
    log: list[str] = []

    class Working(Scripted):
        async def on_stop(self, reason: ExitReason) -> None:
            log.append("on_stop")

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            log.append("job ended")

    async def handle(actor: Scripted, message: object) -> Next:
        actor.context.job(work)
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="working", factory=lambda: Working(handle)))
        await ref.ask(Run(), timeout_s=1)
    assert log == ["job ended", "on_stop"]


@pytest.mark.parametrize("when", ["between turns", "in a turn"])
async def test_failed_job_ends_the_incarnation_at_once(when: str) -> None:
    started = 0

    class Fragile(Scripted):
        async def on_start(self) -> None:
            nonlocal started
            started += 1

    async def fail() -> None:
        await anyio.sleep(1)
        raise ValueError("in the background")

    async def handle(actor: Scripted, message: object) -> Next:
        if started > 1:
            return reply("alive again")
        actor.context.job(fail)
        if when == "in a turn":
            await anyio.sleep_forever()
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="fragile", factory=lambda: Fragile(handle)))
        if when == "in a turn":
            with pytest.raises(ActorFailed) as caught:
                await ref.ask(Run(), timeout_s=math.inf)
            assert repr(caught.value.__cause__) == "ValueError('in the background')"
        else:
            await ref.ask(Run(), timeout_s=1)
            await anyio.sleep(2)
        assert await ref.ask(Run(), timeout_s=5) == "alive again"
        assert started == 2


async def test_cancelled_job_ends_quietly() -> None:
    jobs: list[Job] = []

    async def handle(actor: Scripted, message: object) -> Next:
        jobs.append(actor.context.job(anyio.sleep_forever))
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        await ref.ask(Run(), timeout_s=1)
        (job,) = jobs
        assert not job.done
        job.cancel()
        job.cancel()
        await job.wait()
        assert job.done
        await ref.ask(Run(), timeout_s=1)
        assert system.stats().restarts == 0


async def test_job_takes_arguments_and_may_ask_others() -> None:
    answers: list[int] = []

    async with ActorSystem() as system:
        other = await system.start(counter())

        async def handle(actor: Scripted, message: object) -> Next:
            async def add(amount: int, times: int) -> None:
                for _ in range(times):
                    answers.append(await other.ask(Add(amount=amount), timeout_s=1))

            actor.context.job(add, 2, 3)
            return carry_on()

        ref = await system.start(scripted(handle))
        ref.tell("begin")
        await settle()
    assert answers == [2, 4, 6]


async def test_job_does_not_inherit_the_deadline_of_its_turn() -> None:
    answers: list[object] = []

    async def slow(actor: Scripted, message: object) -> Next:
        await anyio.sleep(10)
        return reply("slow")

    async with ActorSystem() as system:
        other = await system.start(scripted(slow, "slow"))

        async def handle(actor: Scripted, message: object) -> Next:
            async def ask() -> None:
                answers.append(await other.ask(Run(), timeout_s=60))

            actor.context.job(ask)
            return reply(None)

        ref = await system.start(scripted(handle))
        await ref.ask(Run(), timeout_s=1)
        await anyio.sleep(20)
    assert answers == ["slow"]


async def test_job_cannot_answer_a_turn_that_is_not_its_business() -> None:
    outcomes: list[object] = []

    async def handle(actor: Scripted, message: object) -> Next:
        if message == "begin":

            async def take_over() -> None:
                await anyio.sleep(1)
                with pytest.raises(Invalid):
                    actor.context.defer()
                outcomes.append("refused")

            actor.context.job(take_over)
            return carry_on()
        await anyio.sleep(2)
        return reply("mine")

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        ref.tell("begin")
        assert await ref.ask(Run(), timeout_s=5) == "mine"
    assert outcomes == ["refused"]


async def test_killed_actor_takes_its_jobs_along() -> None:
    log: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("job ended")

    async def handle(actor: Scripted, message: object) -> Next:
        if not log:
            actor.context.job(work)
            await settle(3)
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        await ref.ask(Run(), timeout_s=1)
        system.kill(ref)
        await ref.ask(Run(), timeout_s=1)
        assert log == ["job ended"]


async def test_a_job_that_is_to_finish_is_waited_for_by_a_stop_within_its_bound() -> None:
    log: list[str] = []

    async def work(name: str, seconds: float) -> None:
        await anyio.sleep(seconds)
        log.append(name)

    async def handle(actor: Scripted, message: object) -> Next:
        actor.context.job(work, "short", 2, finish=True)
        actor.context.job(work, "cut", 1)
        actor.context.job(work, "long", 60, finish=True)
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        await ref.ask(Run(), timeout_s=1)
        began = anyio.current_time()
        await system.stop(ref)
        assert 4.9 <= anyio.current_time() - began <= 5.1
    assert log == ["cut", "short"]


async def test_a_kill_waits_for_no_job() -> None:
    async def handle(actor: Scripted, message: object) -> Next:
        actor.context.job(anyio.sleep, 60, finish=True)
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        await ref.ask(Run(), timeout_s=1)
        began = anyio.current_time()
        system.kill(ref)
        await settle()
        assert anyio.current_time() == began
        assert system.tree().children[0].jobs == ()
