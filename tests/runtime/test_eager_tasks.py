"""Tests of the runtime once more, on a loop that runs each new task at once up to its first wait, as programs set it up
with `asyncio.eager_task_factory`. Then a task may have ended before its maker gets it.

Tasks of anyio's groups begin later on such a loop as well. What begins at once is what a program makes with
`asyncio.create_task`, and the host task of a block.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from repertory.errors import StartFailed
from repertory.runtime.host_task import HostTask
from repertory.runtime.message import Next, reply
from repertory.runtime.spec import ChildSpec
from repertory.runtime.system import ActorSystem
from repertory.runtime.testing.virtual_time import VirtualTimeLoop
from tests.runtime import (
    test_ask_and_tell,
    test_cancellation,
    test_drain,
    test_host_task,
    test_start_and_stop,
    test_streams,
    test_supervision,
)
from tests.runtime.toys import Add, Crash, Scripted, counter

pytestmark = pytest.mark.anyio

AGAIN = (
    test_ask_and_tell,
    test_cancellation,
    test_drain,
    test_host_task,
    test_start_and_stop,
    test_streams,
    test_supervision,
)
for module in AGAIN:
    globals().update({name: test for name, test in vars(module).items() if name.startswith("test_")})


def eager_task(loop: Any, work: Any, **more: Any) -> asyncio.Task[Any]:
    """What `asyncio.eager_task_factory` does, for Python 3.11, which has none: the first step of a task, at once. It is
    taken from the queue of the loop, where the task has just put it.
    """
    own = inspect.iscoroutine(work) and "/anyio/" not in work.cr_code.co_filename
    if not (own and loop.is_running()):
        return asyncio.Task(work, loop=loop, **more)
    task: asyncio.Task[Any] = vars(asyncio.tasks)["_PyTask"](work, loop=loop, **more)
    current = asyncio.current_task(loop)
    first_step = loop._ready.pop()
    if current is not None:
        asyncio._leave_task(loop, current)
    first_step._run()
    if current is not None:
        asyncio._enter_task(loop, current)
    return task


class EagerLoop(VirtualTimeLoop):
    def __init__(self) -> None:
        super().__init__()
        self.set_task_factory(asyncio.eager_task_factory if sys.version_info >= (3, 12) else eager_task)


class RealEagerLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.set_task_factory(asyncio.eager_task_factory if sys.version_info >= (3, 12) else eager_task)


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    if request.param != "asyncio":
        pytest.skip("a test of another loop")
    real = request.node.get_closest_marker("real_time") is not None
    return "asyncio", {"loop_factory": RealEagerLoop if real else EagerLoop}


async def test_a_task_runs_up_to_its_first_wait_before_its_maker_gets_it() -> None:
    log: list[str] = []

    async def work() -> None:
        log.append("begun")
        await asyncio.sleep(0)
        log.append("ended")

    task = asyncio.create_task(work())
    assert log == ["begun"]
    await task
    assert log == ["begun", "ended"]


async def test_a_host_task_that_ends_before_its_maker_gets_it_tells_why() -> None:
    @asynccontextmanager
    async def block() -> AsyncGenerator[None]:
        raise OSError("no disk")
        yield

    with pytest.raises(OSError, match="no disk"):
        await HostTask(block(), name="broken").enter()


async def test_a_block_that_is_left_at_once_in_another_task_has_ended() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def block() -> AsyncGenerator[str]:
        log.append("entered")
        yield "value"
        log.append("left")

    task = HostTask(block(), name="quick")
    assert await asyncio.create_task(task.enter()) == "value"
    await asyncio.create_task(task.leave())
    assert log == ["entered", "left"]
    assert task.over


async def test_asks_and_crashes_from_eager_tasks_are_answered_in_order() -> None:
    async with ActorSystem() as system:
        ref = await asyncio.create_task(system.start(counter()))
        asked = [asyncio.create_task(ref.ask(Add(), timeout_s=5)) for _ in range(100)]
        assert await asyncio.gather(*asked) == list(range(1, 101))
        ref.tell(Crash())
        asked = [asyncio.create_task(ref.ask(Add(), timeout_s=5)) for _ in range(3)]
        assert await asyncio.gather(*asked) == [1, 2, 3]
        await asyncio.create_task(system.stop(ref))
        assert (await asyncio.create_task(system.drain())).ok


@pytest.mark.parametrize("waits", [True, False])
async def test_a_start_in_an_eager_task_that_is_cancelled_leaves_nothing(*, waits: bool) -> None:
    class Slow(Scripted):
        async def on_start(self) -> None:
            await anyio.sleep(10)

    async with ActorSystem() as system:
        task = asyncio.create_task(system.start(ChildSpec(name="slow", factory=lambda: Slow(answer))))
        if waits:
            await anyio.sleep(1)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, StartFailed)):
            await task
        await anyio.sleep(1)
        assert system.tree().children == ()


async def answer(actor: Scripted, message: object) -> Next:
    return reply(None)


async def test_an_actor_makes_eager_tasks_in_its_turn() -> None:
    async def ask_beside(actor: Scripted, message: object) -> Next:
        other = actor.context.sibling("counter")
        first: list[Awaitable[int]] = [asyncio.create_task(other.ask(Add(), timeout_s=5)) for _ in range(3)]
        return reply(await asyncio.gather(*first))

    async with ActorSystem() as system:
        await system.start(counter())
        factory: Callable[[], Scripted] = lambda: Scripted(ask_beside)  # noqa: E731
        asker = await system.start(ChildSpec(name="asker", factory=factory))
        assert await asker.ask(Add(), timeout_s=5) == [1, 2, 3]
