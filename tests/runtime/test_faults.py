"""Exceptions that are no `Exception`, and tasks that end unasked: they end one actor, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from repertory.errors import ActorDead, ActorFailed, NotReady, RestartLimitReached, Unavailable
from repertory.runtime.faults import ForeignFailure, failure_of
from repertory.runtime.host_task import HostTask
from repertory.runtime.message import Next, carry_on, reply
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import Run, Scripted, counter, scripted, settle

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True)


class Panic(BaseException):
    """As an extension module's."""


async def cancelled_by_others() -> None:
    """Awaits a task that somebody else has cancelled."""
    shared = asyncio.get_running_loop().create_task(asyncio.sleep(3600))
    asyncio.get_running_loop().call_soon(shared.cancel)
    await shared


async def panics() -> None:
    raise Panic("called `Option::unwrap()` on a `None` value")


async def test_a_base_exception_of_a_handler_ends_its_actor_alone() -> None:
    async def handle(actor: Scripted, message: object) -> Next:
        await panics()
        return carry_on()

    async with ActorSystem() as system:
        other = await system.start(counter())
        ref = await system.start(scripted(handle))
        with pytest.raises(ActorFailed) as failed:
            await ref.ask(Run(), timeout_s=1)
        assert isinstance(failed.value.__cause__, ForeignFailure)
        assert isinstance(failed.value.__cause__.__cause__, Panic)
        assert system.healthy
        assert other.ended is None


@ASYNCIO
async def test_a_cancellation_of_nobody_fails_a_handler() -> None:
    async def handle(actor: Scripted, message: object) -> Next:
        await cancelled_by_others()
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        with pytest.raises(ActorFailed, match="CancelledError"):
            await ref.ask(Run(), timeout_s=1)


async def _deferred_answer_fails(work: Callable[[], object]) -> None:
    begun = 0

    async def handle(actor: Scripted, message: object) -> Next:
        nonlocal begun
        begun += 1
        if begun > 1:
            return reply("alive")
        actor.context.defer()
        actor.context.job(work)  # type: ignore[arg-type]
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        with pytest.raises(ActorDead):
            await ref.ask(Run(), timeout_s=60)
        assert await ref.ask(Run(), timeout_s=60) == "alive"


async def test_a_job_that_ends_by_a_base_exception_fails_what_waits_for_it() -> None:
    await _deferred_answer_fails(panics)


@ASYNCIO
async def test_a_job_that_ends_by_a_cancellation_of_nobody_fails_what_waits_for_it() -> None:
    await _deferred_answer_fails(cancelled_by_others)


@ASYNCIO
async def test_a_job_whose_own_task_is_cancelled_natively_fails_what_waits_for_it() -> None:
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep(1)

    await _deferred_answer_fails(cancels_itself)


@ASYNCIO
async def test_tasks_that_are_cancelled_before_their_first_step_end_the_system_and_nothing_waits_for_them() -> None:
    async def handle(actor: Scripted, message: object) -> Next:
        actor.context.job(anyio.sleep_forever)
        before = asyncio.all_tasks()
        actor.context.job(anyio.sleep_forever)
        for task in asyncio.all_tasks() - before:
            task.cancel()
        return reply(None)

    with pytest.raises(RestartLimitReached):
        async with ActorSystem() as system:
            ref = await system.start(scripted(handle))
            await ref.ask(Run(), timeout_s=60)
            await system.drained.wait()


@ASYNCIO
async def test_an_actor_whose_task_is_cancelled_before_its_first_step_has_ended() -> None:
    with pytest.raises(RestartLimitReached):
        async with ActorSystem() as system, anyio.create_task_group() as group:
            before = asyncio.all_tasks()

            def cancel_new() -> None:
                for task in asyncio.all_tasks() - before:
                    task.cancel()

            async def start() -> None:
                asyncio.get_running_loop().call_soon(cancel_new)
                with pytest.raises(anyio.get_cancelled_exc_class()):
                    await system.start(counter())

            group.start_soon(start)
            await system.drained.wait()


@ASYNCIO
async def test_a_host_task_that_is_cancelled_before_its_first_step_has_ended() -> None:
    @asynccontextmanager
    async def block() -> AsyncGenerator[None]:
        yield

    before = asyncio.all_tasks()

    def cancel_new() -> None:
        for task in asyncio.all_tasks() - before:
            task.cancel()

    asyncio.get_running_loop().call_soon(cancel_new)
    with pytest.raises(Unavailable):
        await HostTask(block(), name="unbegun").enter()


async def test_a_cancellation_of_the_running_task_and_an_interrupt_are_no_failures() -> None:
    raised: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.sleep(1)
        except BaseException as error:
            with pytest.raises(type(error)):
                failure_of(error)
            raised.append(error)
            raise
    assert raised
    for exit_of_program in (KeyboardInterrupt(), SystemExit(1), BaseExceptionGroup("", [SystemExit(1), Panic()])):
        with pytest.raises(type(exit_of_program)):
            failure_of(exit_of_program)
    assert isinstance(failure_of(GeneratorExit()), ForeignFailure)
    assert isinstance(failure_of(BaseExceptionGroup("", [Panic(), ValueError()])), ForeignFailure)
    error = ValueError()
    assert failure_of(error) is error


async def test_a_drain_before_the_start_says_so() -> None:
    with pytest.raises(NotReady):
        await ActorSystem().drain()
    await settle()
