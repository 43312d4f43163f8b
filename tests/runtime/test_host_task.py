"""A block that lives in a task of its own: entered in one task, left in another, and it ends as blocks do."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing

from repertory.errors import Unavailable
from repertory.runtime.host_task import HostTask
from repertory.runtime.testing.virtual_time import virtual_asyncio

pytestmark = pytest.mark.anyio

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)

SPEAKER = contextvars.ContextVar("SPEAKER", default="nobody")


class Trouble(Exception):
    """What goes wrong in a hosted block."""


class Room:
    """A block with a task group, which ends in the task that began it or fails."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.opening_s = 0.0
        self.closing_s = 0.0
        self.falls = anyio.Event()
        """Lets the block end by itself, with `Trouble`."""
        self.fails_to_close = False

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[str]:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._fall)
                await anyio.sleep(self.opening_s)
                self.log.append("open")
                try:
                    yield SPEAKER.get()
                except anyio.get_cancelled_exc_class():
                    self.log.append("cancelled")
                    raise
                finally:
                    try:
                        with anyio.CancelScope(shield=True):
                            await anyio.sleep(self.closing_s)
                    except anyio.get_cancelled_exc_class():
                        self.log.append("hurried")
                    group.cancel_scope.cancel()
                    self.log.append("closed")
        except* Trouble as group_of:
            raise group_of.exceptions[0] from None
        if self.fails_to_close:
            raise Trouble("closing")

    async def _fall(self) -> None:
        await self.falls.wait()
        raise Trouble("fallen")

    def task(self) -> HostTask[str]:
        return HostTask(self.open(), name="room")


async def in_a_task(function: Callable[..., Awaitable[object]], *arguments: object) -> object:
    """Call it in a task of its own, which has ended afterwards."""
    results: list[object] = []

    async def call() -> None:
        try:
            results.append(await function(*arguments))
        except Trouble as error:
            results.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
    return results[0]


def tasks_alive() -> int:
    """How many tasks the running loop has."""
    if isinstance(anyio.lowlevel.current_token().native_token, trio.lowlevel.TrioToken):
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


async def test_a_block_that_is_entered_in_one_task_is_left_in_another_and_nothing_is_left_running() -> None:
    before, room = tasks_alive(), Room()
    task = room.task()
    assert await in_a_task(task.enter) == "nobody"
    assert tasks_alive() > before
    await in_a_task(task.leave)
    assert room.log == ["open", "closed"]
    assert tasks_alive() == before


async def test_scopes_around_entering_and_around_leaving_are_not_those_of_the_block() -> None:
    """What an exit stack, a timeout for the start or a nursery that is already open does."""
    room = Room()
    task = room.task()
    with anyio.fail_after(5):
        await task.enter()
    async with anyio.create_task_group() as group:
        group.start_soon(task.leave)
    assert room.log == ["open", "closed"]


async def test_the_hosted_block_sees_the_context_of_whoever_entered() -> None:
    SPEAKER.set("ada")
    task = Room().task()
    assert await task.enter() == "ada"
    await task.leave()


async def test_leaving_twice_or_without_having_been_opened_whole_does_nothing() -> None:
    room = Room()
    task = room.task()
    await task.enter()
    await task.leave()
    await task.leave()
    assert room.log == ["open", "closed"]


async def test_what_entering_raises_reaches_whoever_enters() -> None:
    room = Room()
    room.opening_s = 5
    room.falls.set()
    before = tasks_alive()
    with pytest.raises(Trouble, match="fallen"):
        await room.task().enter()
    assert room.log == []
    assert tasks_alive() == before


async def test_what_leaving_raises_reaches_whoever_leaves_and_only_once() -> None:
    room = Room()
    room.fails_to_close = True
    task = room.task()
    await task.enter()
    assert isinstance(await in_a_task(task.leave), Trouble)
    await task.leave()


async def test_entering_that_is_cancelled_leaves_nothing_running() -> None:
    room = Room()
    room.opening_s = 5
    before = tasks_alive()
    with anyio.move_on_after(1) as scope:
        await room.task().enter()
    assert scope.cancelled_caught
    assert room.log == []
    assert tasks_alive() == before


async def test_a_cancelled_owner_closes_the_block_as_cancelled_and_waits_for_its_end() -> None:
    room = Room()
    room.closing_s = 5
    task = room.task()
    with anyio.move_on_after(1) as scope:
        await task.enter()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as error:
            await task.leave(error)
            raise
    assert scope.cancelled_caught
    assert room.log == ["open", "cancelled", "closed"]


@ASYNCIO
async def test_native_cancellations_while_leaving_are_handed_on_and_raised_at_the_end() -> None:
    room = Room()
    room.closing_s = 1
    task = room.task()
    await task.enter()
    leaving = asyncio.create_task(task.leave())
    await asyncio.sleep(0.5)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert room.log == ["open", "hurried", "closed"]


async def owner_of(room: Room, inner: Callable[[], Awaitable[object]]) -> None:
    """A block in one task, as `async with` has it."""
    task = room.task()
    await task.enter()
    error: BaseException | None = None
    try:
        room.falls.set()
        await inner()
    except BaseException as caught:
        error = caught
        raise
    finally:
        await task.leave(error)


async def with_a_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)


async def with_a_scope() -> None:
    with anyio.move_on_after(100):
        await anyio.sleep_forever()


@pytest.mark.parametrize("inner", [anyio.sleep_forever, with_a_group, with_a_scope])
async def test_a_hosted_block_that_ends_by_itself_ends_the_owners_block_with_its_error(
    inner: Callable[[], Awaitable[object]],
) -> None:
    room = Room()
    with anyio.fail_after(5), pytest.raises(Trouble, match="fallen"):
        await owner_of(room, inner)
    await anyio.sleep(1)  # Nothing of the cancellation is left behind.
    assert room.log[-1] == "closed"
    if (current := native_task()) is not None:
        assert current.cancelling() == 0


def native_task() -> asyncio.Task[object] | None:
    """The running task of asyncio; None on trio."""
    on_trio = isinstance(anyio.lowlevel.current_token().native_token, trio.lowlevel.TrioToken)
    return None if on_trio else asyncio.current_task()


async def test_an_owner_that_does_not_wait_hears_of_the_end_when_it_leaves() -> None:
    room = Room()
    task = room.task()
    await task.enter()
    room.falls.set()
    with pytest.raises(Trouble, match="fallen"):
        await task.leave()
    await anyio.sleep(1)


async def test_an_owner_that_has_ended_is_left_alone_and_whoever_leaves_hears_of_the_end() -> None:
    room = Room()
    task = room.task()
    await in_a_task(task.enter)
    room.falls.set()
    await anyio.sleep(1)
    assert isinstance(await in_a_task(task.leave), Trouble)


def test_a_block_that_nobody_leaves_is_closed_in_order_at_the_end_of_asyncio(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []

    async def main() -> None:
        room = Room()
        room.log = log
        room.closing_s = 1
        await room.task().enter()

    name, options = virtual_asyncio()
    with caplog.at_level(logging.DEBUG, "asyncio"):
        anyio.run(main, backend=name, backend_options=dict(options))
    assert log == ["open", "cancelled", "closed"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_block_that_nobody_leaves_is_closed_in_order_at_the_end_of_trio() -> None:
    log: list[str] = []

    async def main() -> None:
        room = Room()
        room.log = log
        room.closing_s = 1
        await room.task().enter()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert log == ["open", "cancelled", "closed"]


@ASYNCIO
async def test_entering_in_a_loop_that_cancels_everything_is_refused_and_not_waited_for() -> None:
    room = Room()
    room.opening_s = 5
    entering = asyncio.create_task(room.task().enter())
    await asyncio.sleep(1)
    for each in asyncio.all_tasks():
        if each.get_name() == "room":
            each.cancel()
    with pytest.raises(Unavailable, match="event loop is ending"):
        await entering
