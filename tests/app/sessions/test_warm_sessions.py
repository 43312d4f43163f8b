"""Calls outside a block: the actors of a session stay alive between them, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import anyio
import pytest

from repertory import (
    Agent,
    Runtime,
    ScriptedModel,
    SessionManager,
    Sessions,
    SlidingWindowConversationManager,
    SQLiteSessionManager,
    SQLiteSessions,
    tool,
)
from repertory.app.host.host import PAUSED_MAX
from repertory.backends.sessions.sqlite.file import lease_file
from repertory.backends.sessions.sqlite.journals import LeaseMarks
from tests.compat.test_outside_turns import run_to_its_end
from tests.service.embedding_process import started

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def kept(path: Path, *answers: str, session: str = "s", **options: object) -> Agent:
    model = ScriptedModel(list(answers) or ["ok"], loop=True)
    manager: SessionManager = SQLiteSessionManager(session, path=path)
    return Agent(model, session_manager=manager, callback_handler=None, **options)  # type: ignore[arg-type]


def texts(agent: Agent) -> list[str]:
    return [block["text"] for message in agent.messages for block in message["content"] if "text" in block]


def owner_of(path: Path) -> str | None:
    with closing(sqlite3.connect(path)) as database:
        generation, owner = database.execute("SELECT generation, owner FROM sessions").fetchone()
        return owner if LeaseMarks(lease_file(path)).says_held(generation) else None


# Who else wants the session.


async def test_nobody_owns_a_session_between_two_calls(path: Path) -> None:
    agent = kept(path)
    await agent.invoke_async("one")
    (info,) = await Sessions(SQLiteSessions(path)).list()
    assert info.owner is None
    await agent.invoke_async("two")
    assert texts(agent) == ["one", "ok", "two", "ok"]


async def test_what_another_program_adds_between_two_calls_is_seen_by_the_second(path: Path) -> None:
    agent = kept(path)
    await agent.invoke_async("one")
    other = "import sys; from tests.app.sessions.test_warm_sessions import kept; kept(sys.argv[1], 'theirs')('two')"
    await anyio.to_thread.run_sync(run_to_its_end, other, str(path))
    await agent.invoke_async("three")
    assert texts(agent) == ["one", "ok", "two", "theirs", "three", "ok"]


async def test_agents_that_take_turns_in_one_session_each_use_their_own_model(path: Path) -> None:
    ann, ben = kept(path, "I am Ann"), kept(path, "I am Ben")
    for agent in (ann, ben, ann, ann, ben):
        await agent.invoke_async("Who is it?")
    assert texts(ben)[1::2] == ["I am Ann", "I am Ben", "I am Ann", "I am Ann", "I am Ben"]


async def test_agents_of_one_session_may_call_at_the_same_time(path: Path) -> None:
    agents = [kept(path, "Ann"), kept(path, "Ben")]
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(agents[number % 2].invoke_async, f"call {number}")
    seen = texts(agents[0]) if len(texts(agents[0])) == 12 else texts(agents[1])
    assert sorted(seen[0::2]) == [f"call {number}" for number in range(6)]
    assert sorted(seen[1::2]) == ["Ann"] * 3 + ["Ben"] * 3


async def test_a_session_that_was_deleted_between_two_calls_begins_anew(path: Path) -> None:
    agent = kept(path)
    await agent.invoke_async("one")
    await Sessions(SQLiteSessions(path)).delete("s")
    await agent.invoke_async("two")
    assert texts(agent) == ["two", "ok"]


async def test_a_session_that_was_deleted_and_made_again_is_read_again(path: Path) -> None:
    agent = kept(path)
    await agent.invoke_async("one")
    await Sessions(SQLiteSessions(path)).delete("s")
    await kept(path, "new").invoke_async("two")
    await agent.invoke_async("three")
    assert texts(agent) == ["two", "new", "three", "ok"]


async def test_a_runtime_may_use_the_session_between_two_calls(path: Path) -> None:
    agent = kept(path)
    await agent.invoke_async("one")
    async with Runtime():
        await agent.invoke_async("two")
    async with agent:
        await agent.invoke_async("three")
    await agent.invoke_async("four")
    assert texts(agent) == ["one", "ok", "two", "ok", "three", "ok", "four", "ok"]


async def test_a_database_that_was_upgraded_between_two_calls_is_not_written_to(path: Path) -> None:
    agent = kept(path)
    await agent.invoke_async("one")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.commit()
    with pytest.raises(Exception, match="newer release"):
        await agent.invoke_async("two")


# What a call sees.


async def test_attributes_that_change_between_two_calls_count_from_the_next_on(path: Path) -> None:
    agent = kept(path)
    await agent.invoke_async("one")
    agent.conversation_manager = SlidingWindowConversationManager(window_size=2)
    agent.model = ScriptedModel(["another"], loop=True)
    await agent.invoke_async("two")
    await agent.invoke_async("three")
    assert texts(agent) == ["three", "another"]


async def test_state_that_is_set_between_two_calls_is_stored_by_the_second(path: Path) -> None:
    agent = kept(path)
    await agent.invoke_async("one")
    agent.state.set("colour", "red")
    await agent.invoke_async("two")
    again = kept(path)
    await again.ready()
    assert again.state.get("colour") == "red"


async def test_a_tool_sees_the_context_variables_of_its_own_call(path: Path) -> None:
    request = contextvars.ContextVar("request", default="none")
    seen: list[str] = []

    @tool
    def look() -> str:
        """Look at the request."""
        seen.append(request.get())
        return "done"

    uses = [{"toolUse": {"toolUseId": f"t{number}", "name": "look", "input": {}}} for number in range(3)]
    model = ScriptedModel([each for use in uses for each in ([use], "ok")])
    agent = Agent(model, tools=[look], session_manager=SQLiteSessionManager("s", path=path), callback_handler=None)
    for name in ("one", "two"):
        request.set(name)
        await agent.invoke_async("look")
    request.set("three")
    await agent.invoke_async("look")
    assert seen == ["one", "two", "three"]


async def test_a_call_that_was_cancelled_leaves_a_session_for_the_next(path: Path) -> None:
    model = ScriptedModel(["ok"], delay_s=0.05, loop=True)
    agent = Agent(model, session_manager=SQLiteSessionManager("s", path=path), callback_handler=None)
    await agent.invoke_async("one")
    for after_s in (0.0, 0.001, 0.02):
        with anyio.move_on_after(after_s):
            await agent.invoke_async("cut short")
    assert str(await agent.invoke_async("two")) == "ok"
    assert texts(agent)[-2:] == ["two", "ok"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_call_that_asyncio_cancels_at_any_moment_leaves_the_session_to_others(times: int, path: Path) -> None:
    """No shield stops such a cancellation, and it may come again while the call still ends."""
    agent = kept(path)
    await agent.invoke_async("one")
    for moment in range(40):
        call = asyncio.create_task(agent.invoke_async("cut short"))
        for _ in range(moment):
            await asyncio.sleep(0.0002 * (moment % 2))
        for _ in range(times):
            call.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([call])
        await asyncio.sleep(0.02)  # What was cut short may still be about to own the session.
        for _ in range(6_000):
            if owner_of(path) is None:
                break
            await asyncio.sleep(0.005)
        else:
            pytest.fail(f"the session was not given up after {moment} steps")
    assert str(await agent.invoke_async("two")) == "ok"
    assert texts(agent)[-2:] == ["two", "ok"]


async def test_a_stream_may_be_left_and_the_session_called_again(path: Path) -> None:
    agent = kept(path)
    await agent.invoke_async("one")
    stream = agent.stream_async("two")
    async for _ in stream:
        break
    await stream.aclose()
    assert str(await agent.invoke_async("three")) == "ok"


# How long it stays.


def open_files(path: Path) -> list[str]:
    """The files of a database that this process has open."""
    found: list[str] = []
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # Another thread has closed it.
            found.append(os.readlink(f"/proc/self/fd/{each}"))
    return sorted(link for link in found if link.startswith(str(path)))


async def test_shutting_an_agent_down_closes_what_its_calls_left_open(path: Path) -> None:
    agent = kept(path)
    await agent.invoke_async("one")
    assert open_files(path)
    await agent.shutdown_async()
    assert not open_files(path)
    await agent.invoke_async("two")
    assert texts(agent) == ["one", "ok", "two", "ok"]


def test_shutting_an_agent_down_in_sync_code_closes_what_its_calls_left_open(path: Path) -> None:
    agent = kept(path)
    agent("one")
    assert open_files(path)
    agent.shutdown()
    assert not open_files(path)
    agent("two")
    agent.shutdown()
    assert texts(agent) == ["one", "ok", "two", "ok"]


async def test_as_many_sessions_as_are_allowed_stay_and_each_can_be_called_again() -> None:
    agents = [
        Agent(ScriptedModel(["ok"], loop=True), callback_handler=None, session_manager=None)
        for _ in range(PAUSED_MAX + 20)
    ]
    for agent in agents:
        await agent.invoke_async("one")
    for agent in agents:
        await agent.invoke_async("two")
        assert texts(agent) == ["one", "ok", "two", "ok"]


# Event loops.

LOOPS = """
import asyncio, gc, os, sys, threading, trio
from repertory import Agent, ScriptedModel, SQLiteSessionManager

def called(run):
    result = run()
    assert str(result) == "ok", result

kept = None if sys.argv[1] == "memory" else SQLiteSessionManager("s", path=sys.argv[1])
agent = Agent(ScriptedModel(["ok"], loop=True), session_manager=kept, callback_handler=None)
waits = asyncio.new_event_loop()  # It runs now and then, and is never closed.
for _ in range(3):
    called(lambda: asyncio.run(agent.invoke_async("a loop of its own")))
    called(lambda: trio.run(agent.invoke_async, "trio"))
    called(lambda: agent("from sync code"))
    called(lambda: waits.run_until_complete(agent.invoke_async("a loop that waits")))
    closed = asyncio.new_event_loop()
    called(lambda: closed.run_until_complete(agent.invoke_async("a loop that is closed")))
    closed.close()

    async def both():
        assert str(await agent.invoke_async("before")) == "ok"
        assert str(await asyncio.to_thread(agent, "from a thread")) == "ok"
        assert str(await agent.invoke_async("after")) == "ok"

    asyncio.run(both())
assert len(agent.messages) == 48 - 8, len(agent.messages)  # The window's size.
for _ in range(20):
    closed = asyncio.new_event_loop()
    called(lambda: closed.run_until_complete(agent.invoke_async("many loops")))
    closed.close()
    del closed
    gc.collect()
names = [thread.name for thread in threading.enumerate()]
assert len(names) < 8, names
assert len(os.listdir("/proc/self/fd")) < 60
"""


@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_an_agent_may_be_called_in_one_loop_after_the_other(where: str, path: Path) -> None:
    run_to_its_end(LOOPS, "memory" if where == "memory" else str(path))


FORKS = """
import asyncio, os, sys
from repertory import Agent, ScriptedModel, SQLiteSessionManager

agent = Agent(
    ScriptedModel(["ok"], loop=True), session_manager=SQLiteSessionManager("s", path=sys.argv[1]), callback_handler=None
)

async def main():
    await agent.invoke_async("before")
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    await agent.invoke_async("after")

asyncio.run(main())
child = os.fork()
if not child:
    assert str(asyncio.run(agent.invoke_async("in the child"))) == "ok"
    assert str(agent("in the child, sync")) == "ok"
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert str(agent("in the parent")) == "ok"
assert len(agent.messages) == 10, len(agent.messages)
"""


def test_forks_keep_the_sessions_of_parent_and_child_apart(path: Path) -> None:
    run_to_its_end(FORKS, str(path))


IDLE = """
import asyncio, sys
from repertory import Agent, ScriptedModel, SQLiteSessionManager

agent = Agent(
    ScriptedModel(["ok"], loop=True), session_manager=SQLiteSessionManager("s", path=sys.argv[1]), callback_handler=None
)

async def main():
    for number in range(3):
        await agent.invoke_async(f"call {number}")
    print("called", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_process_that_is_killed_between_two_calls_has_lost_nothing_and_hinders_nobody(path: Path) -> None:
    with started("-c", IDLE, str(path), folder=path.parent) as program:
        await anyio.to_thread.run_sync(program.wait_for, "called")
        agent = kept(path)
        await agent.invoke_async("while it lives")
        program.kill()
    await agent.invoke_async("after its death")
    assert texts(agent)[0::2] == ["call 0", "call 1", "call 2", "while it lives", "after its death"]


def test_ctrl_c_between_two_calls_ends_the_program_without_a_word(path: Path) -> None:
    with started("-c", IDLE.replace("asyncio.run(main())", QUIET), str(path), folder=path.parent) as program:
        program.wait_for("called")
        program.signal(signal.SIGINT)
        program.wait_for("ended")
        assert program.exit_code() == 0
    assert program.output[-2:] == ["called", "ended"]


QUIET = """
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("ended", flush=True)
"""


@pytest.mark.parametrize("steps", range(16))
@pytest.mark.parametrize("stored", [False, True])
async def test_a_first_call_that_is_cut_short_at_any_step_leaves_nothing_half_entered(
    tmp_path: Path, stored: bool, steps: int
) -> None:
    """The loop's host starts with it: what of that has begun is ended again, and the next call starts it anew."""
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db") if stored else None
    agent = Agent(ScriptedModel(["fine"], loop=True), session_manager=manager, callback_handler=None)
    async with anyio.create_task_group() as group:
        group.start_soon(agent.invoke_async, "first")
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        if stored and steps % 2:
            await anyio.sleep(steps / 2000)
        group.cancel_scope.cancel()
    for _ in range(2):
        assert str(await agent.invoke_async("again")) == "fine"
