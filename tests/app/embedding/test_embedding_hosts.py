"""A runtime inside somebody else's task group: it starts, serves, and ends with its host, however that ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import anyio
import anyio.lowlevel
import pytest
import trio
from starlette.applications import Starlette

from repertory import AgentSpec, Runtime, SQLiteSessions
from repertory.app.embedding.hosted import HostedAgent
from repertory.core.messages import STOPPED_TEXT
from repertory.errors import SessionBusy
from repertory.runtime.drain import ActorsReport
from tests.service.histories import read_histories
from tests.service.living import Living
from tests.worker.obedient_model import ObedientModel

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

SESSIONS = [f"s{number}" for number in range(5)]


class Trouble(Exception):
    """What happens beside the runtime."""


class Group(Protocol):
    """What the task groups of asyncio, trio and anyio have in common here."""

    def start_soon(self, function: Callable[..., Awaitable[object]], /, *arguments: object) -> object: ...


class AsyncioGroup:
    """`asyncio.TaskGroup`, with the method that the others have."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def start_soon(self, function: Callable[..., Awaitable[object]], /, *arguments: object) -> object:
        async def call() -> None:
            await function(*arguments)

        return self._group.create_task(call())


@asynccontextmanager
async def native_group() -> AsyncIterator[Group]:
    """The task group of the event loop that runs."""
    if on_trio():
        async with trio.open_nursery() as nursery:
            yield nursery
    else:
        async with asyncio.TaskGroup() as group:
            yield AsyncioGroup(group)


def on_trio() -> bool:
    return isinstance(anyio.lowlevel.current_token().native_token, trio.lowlevel.TrioToken)


Hosts = Callable[[], AbstractAsyncContextManager[Group]]


@pytest.fixture(params=["anyio", "native"])
def group(request: pytest.FixtureRequest) -> Hosts:
    return anyio.create_task_group if request.param == "anyio" else native_group


def agent_of(runtime: Runtime) -> HostedAgent:
    return runtime.agent(AgentSpec(name="helper", model=ObedientModel()))


async def until_said(capfd: pytest.CaptureFixture[str], text: str, times: int) -> None:
    """Wait until the models of the test have said it so often."""
    with anyio.fail_after(20):
        while times > 0:
            times -= capfd.readouterr().out.count(text)
            await anyio.sleep(0.01)


async def test_a_runtime_in_a_task_group_serves_many_sessions_and_drains_when_its_block_ends(
    tmp_path: Path, group: Hosts, capfd: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "a.db"
    async with group() as tasks, Runtime(sessions=SQLiteSessions(database)) as runtime:
        for session in SESSIONS:
            tasks.start_soon(agent_of(runtime).session(session).invoke, "slow one")
        await until_said(capfd, "begun", len(SESSIONS))
    histories = await read_histories(database, "helper", SESSIONS)
    assert histories == [["slow one", "done: slow one"]] * len(SESSIONS)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts file descriptors in /proc")
@pytest.mark.parametrize("how", ["its scope is cancelled", "a sibling fails", "its task is cancelled", "it times out"])
async def test_a_host_that_ends_badly_leaves_valid_journals_and_nothing_else(
    tmp_path: Path, group: Hosts, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def in_the_middle(database: Path) -> None:
        """Answered turns everywhere, and another one on its way."""
        async with group() as tasks, Runtime(sessions=SQLiteSessions(database)) as runtime:
            for session in SESSIONS:
                await agent_of(runtime).session(session).invoke("hello")
                tasks.start_soon(agent_of(runtime).session(session).invoke, f"endless {session}")
            await until_said(capfd, "begun endless", len(SESSIONS))
            if how == "a sibling fails":
                tasks.start_soon(fail)
            else:
                ready.set()
            await anyio.sleep_forever()

    async def fail() -> None:
        raise Trouble

    async def life(database: Path) -> None:
        nonlocal ready
        ready = anyio.Event()
        match how:
            case "a sibling fails":
                with pytest.raises(BaseExceptionGroup) as caught:
                    await in_the_middle(database)
                assert [type(error) for error in leaves(caught.value)] == [Trouble]
            case "its scope is cancelled":
                async with anyio.create_task_group() as outer:
                    outer.start_soon(in_the_middle, database)
                    await ready.wait()
                    outer.cancel_scope.cancel()
            case "its task is cancelled":
                await cancelled_natively(in_the_middle, database, ready)
            case _:
                await timed_out_natively(in_the_middle, database, ready)

    ready = anyio.Event()
    await life(tmp_path / "first.db")  # whatever is made once per process has been made now
    before = Living.now()
    await life(tmp_path / "second.db")
    after = Living.now()
    assert after.has_not_grown_since(before), (before, after)
    for history, session in zip(
        await read_histories(tmp_path / "second.db", "helper", SESSIONS), SESSIONS, strict=True
    ):
        assert history[:3] == ["hello", "done: hello", f"endless {session}"]
        # A caller that has gone, unlike a runtime that ends, has read what was said.
        assert history[3:] in ([], [f"done: endless {session}\n{STOPPED_TEXT}"])


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in a group of groups."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


async def cancelled_natively(host: Callable[[Path], Awaitable[None]], database: Path, ready: anyio.Event) -> None:
    """Cancel the host as its own event loop does it."""
    if on_trio():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host, database)
            await ready.wait()
            nursery.cancel_scope.cancel()
        return
    task = asyncio.ensure_future(host(database))
    await ready.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def timed_out_natively(host: Callable[[Path], Awaitable[None]], database: Path, ready: anyio.Event) -> None:
    """Give the host a deadline, as its own event loop does it, which passes when it is ready."""
    if on_trio():
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(when, ready, lambda: setattr(scope, "deadline", trio.current_time()))
                await host(database)
        return
    async with asyncio.TaskGroup() as group:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as timeout:
                now = asyncio.get_running_loop().time
                group.create_task(when(ready, lambda: timeout.reschedule(now())))
                await host(database)


async def when(event: anyio.Event, do: Callable[[], object]) -> None:
    await event.wait()
    do()


async def test_an_error_in_the_runtimes_own_block_comes_out_as_it_is(tmp_path: Path, group: Hosts) -> None:
    database = tmp_path / "a.db"
    with pytest.raises(BaseExceptionGroup) as caught:
        async with group(), Runtime(sessions=SQLiteSessions(database)) as runtime:
            await agent_of(runtime).session("s").invoke("hello")
            raise Trouble
    assert [type(error) for error in caught.value.exceptions] == [Trouble]
    assert await read_histories(database, "helper", ["s"]) == [["hello", "done: hello"]]


async def test_a_runtime_in_a_lifespan_opens_before_requests_and_drains_after_them(tmp_path: Path) -> None:
    """Entered and left in the one task that the server gives a lifespan; used from the tasks of requests."""
    database = tmp_path / "a.db"
    reports: list[ActorsReport] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with Runtime(sessions=SQLiteSessions(database)) as runtime:
            app.state.agent = agent_of(runtime)
            yield
            reports.append(await runtime.drain())

    app = Starlette(lifespan=lifespan)
    async with app.router.lifespan_context(app), anyio.create_task_group() as requests:
        for session in SESSIONS:
            requests.start_soon(app.state.agent.session(session).invoke, "hello")
    assert [report.ok for report in reports] == [True]
    assert await read_histories(database, "helper", SESSIONS) == [["hello", "done: hello"]] * len(SESSIONS)


async def test_two_runtimes_in_one_task_group_do_not_disturb_each_other(tmp_path: Path, group: Hosts) -> None:
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    async with group(), Runtime(sessions=SQLiteSessions(first)) as one:
        async with Runtime(sessions=SQLiteSessions(second)) as other:
            await agent_of(one).session("s").invoke("hello")
            await agent_of(other).session("s").invoke("hello")
        assert not other.healthy
        assert one.healthy
        await agent_of(one).session("s").invoke("again")
    assert await read_histories(first, "helper", ["s"]) == [["hello", "done: hello", "again", "done: again"]]
    assert await read_histories(second, "helper", ["s"]) == [["hello", "done: hello"]]


async def test_another_owner_of_the_same_sessions_waits_until_the_idle_one_has_given_them_up(tmp_path: Path) -> None:
    """Two runtimes on one database, as in two processes: what is not kept idle is free after each call, and what is
    idle is given up when somebody asks.
    """
    database = tmp_path / "a.db"
    async with (
        Runtime(sessions=SQLiteSessions(database), idle_timeout_s=120) as keeping,
        Runtime(sessions=SQLiteSessions(database), idle_timeout_s=0) as sharing,
        Runtime(sessions=SQLiteSessions(database)) as other,
    ):
        await agent_of(keeping).session("kept").invoke("hello")
        await agent_of(sharing).session("shared").invoke("hello")
        await agent_of(other).session("shared").invoke("again")
        with anyio.fail_after(20):
            while True:
                with suppress(SessionBusy):
                    await agent_of(other).session("kept").invoke("again")
                    break
    for history in await read_histories(database, "helper", ["kept", "shared"]):
        assert history == ["hello", "done: hello", "again", "done: again"]
