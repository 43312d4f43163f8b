"""Work that runs with somebody else's context variables."""

from __future__ import annotations

import contextvars
import math

import anyio
import anyio.to_thread
import pytest

from repertory.actors.call import OPEN_TURNS, Invocation, OpenTurn, deadline, in_context
from repertory.runtime.message import current_trace, traced

pytestmark = pytest.mark.anyio

name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


def turn(said: str, deadline: float = math.inf) -> OpenTurn:
    return OpenTurn(agent=None, call=Invocation(prompt=said, deadline=deadline))  # type: ignore[arg-type] - unasked


TURN = turn("c1")


def context_of(value: str) -> contextvars.Context:
    context = contextvars.copy_context()
    context.run(name.set, value)
    return context


async def test_every_step_and_every_child_runs_in_the_context_and_nothing_leaks_out() -> None:
    seen: list[str] = []

    async def look() -> None:
        seen.append(name.get())

    async def work() -> str:
        seen.append(name.get())
        await anyio.sleep(1)
        seen.append(name.get())
        async with anyio.create_task_group() as group:
            group.start_soon(look)
        name.set("changed inside")
        return name.get()

    assert await in_context(context_of("ann"), TURN, work()) == "changed inside"
    assert seen == ["ann"] * 3
    assert name.get() == "nobody"


@pytest.mark.real_time
async def test_a_thread_sees_it_too() -> None:
    assert await in_context(context_of("ann"), TURN, anyio.to_thread.run_sync(name.get)) == "ann"


async def test_several_contexts_take_turns_in_one_loop() -> None:
    seen: dict[str, list[str]] = {}

    async def work(own: str) -> None:
        for _ in range(3):
            seen.setdefault(own, []).append(name.get())
            await anyio.sleep(1)

    async def in_own(own: str) -> None:
        await in_context(context_of(own), TURN, work(own))

    async with anyio.create_task_group() as group:
        for own in ("ann", "ben", "cleo"):
            group.start_soon(in_own, own)
    assert seen == {own: [own] * 3 for own in ("ann", "ben", "cleo")}


async def test_what_the_work_raises_is_raised() -> None:
    async def work() -> None:
        await anyio.sleep(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await in_context(context_of("ann"), TURN, work())


async def test_a_cancellation_reaches_the_work_in_its_context() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(name.get())
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
                seen.append(name.get())

    with anyio.move_on_after(1) as scope:
        await in_context(context_of("ann"), TURN, work())
    assert scope.cancelled_caught
    assert seen == ["ann", "ann"]


async def test_a_scope_inside_the_work_is_its_own() -> None:
    async def work() -> str:
        with anyio.move_on_after(1):
            await anyio.sleep_forever()
        return name.get()

    assert await in_context(context_of("ann"), TURN, work()) == "ann"


async def test_the_turns_in_which_it_runs_are_told_and_the_trace_is_the_callers() -> None:
    async def look() -> tuple[object, list[object]]:
        await anyio.lowlevel.checkpoint()
        return current_trace(), [turn.call.prompt for turn in OPEN_TURNS.get()]

    async def outer() -> tuple[object, list[object]]:
        with traced("inner trace"):
            caller = contextvars.copy_context()
        return await in_context(caller, turn("c2"), look())

    with traced("outer trace"):
        context = contextvars.copy_context()
    assert await in_context(context, TURN, look()) == ("outer trace", ["c1"])
    assert await in_context(context_of("ann"), TURN, outer()) == ("inner trace", ["c1", "c2"])
    assert OPEN_TURNS.get() == ()


async def test_the_first_deadline_of_the_calls_is_that_of_what_is_done_for_them() -> None:
    now = anyio.current_time()

    async def inner(at: float) -> float:
        return await in_context(contextvars.copy_context(), turn("inner", at), look())

    async def look() -> float:
        await anyio.lowlevel.checkpoint()
        return deadline()

    assert await in_context(context_of("ann"), TURN, inner(math.inf)) == math.inf
    assert await in_context(context_of("ann"), TURN, inner(now + 5)) == now + 5
    for at in (math.inf, now + 9, now + 3):
        assert await in_context(context_of("ann"), turn("outer", now + 5), inner(at)) == min(at, now + 5)
    assert deadline() == math.inf


@pytest.mark.real_time
async def test_a_deadline_means_nothing_by_another_clock() -> None:
    def elsewhere() -> float:
        return anyio.run(look)

    async def look() -> float:
        return deadline()

    called = anyio.to_thread.run_sync(elsewhere)
    assert await in_context(context_of("ann"), turn("c1", anyio.current_time() + 5), called) == math.inf
