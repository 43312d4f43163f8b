"""Blocks of the public surface that one task enters and another leaves, as yield fixtures and start-up callbacks do."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    Graph,
    MCPClient,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    Swarm,
)
from repertory.app.host.host import ambient_host
from repertory.errors import RestartLimitReached
from tests.mcp.mcp_servers import TOYS
from tests.service.histories import read_histories

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def model() -> ScriptedModel:
    return ScriptedModel(["fine"], loop=True)


def stored_agent(folder: Path) -> Agent:
    return Agent(model(), callback_handler=None, session_manager=SQLiteSessionManager("s", folder / "a.db"))


async def in_a_task(function: Callable[[], Awaitable[object]]) -> None:
    """Call it in a task of its own, which has ended afterwards. What it raises comes out as it is."""
    errors: list[BaseException] = []

    async def call() -> None:
        try:
            await function()
        except RestartLimitReached as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(call)
    for error in errors:
        raise error


class Moved:
    """A block, entered in one task and left in another."""

    def __init__(self, block: AbstractAsyncContextManager[object]) -> None:
        self._block = block

    async def __aenter__(self) -> None:
        await in_a_task(self._block.__aenter__)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await in_a_task(lambda: self._block.__aexit__(None, None, None))


async def test_a_runtime(tmp_path: Path) -> None:
    runtime = Runtime(sessions=SQLiteSessions(tmp_path / "a.db"))
    async with Moved(runtime):
        await runtime.agent(AgentSpec(name="default", model=model())).session("s").invoke("hello")
        assert runtime.healthy
    assert not runtime.healthy
    assert (await runtime.drain()).ok
    assert await read_histories(tmp_path / "a.db", "default", ["s"]) == [["hello", "fine"]]


async def test_an_agent_and_others_may_call_it_meanwhile(tmp_path: Path) -> None:
    agent = stored_agent(tmp_path)
    async with Moved(agent):
        await agent.invoke_async("hello")
        await in_a_task(lambda: agent.invoke_async("again"))
    await stored_agent(tmp_path).invoke_async("afterwards")
    said = [["hello", "fine", "again", "fine", "afterwards", "fine"]]
    assert await read_histories(tmp_path / "a.db", "default", ["s"]) == said


async def test_an_agent_on_a_runtime_that_has_moved_as_well(tmp_path: Path) -> None:
    agent = stored_agent(tmp_path)
    async with Moved(Runtime()), Moved(agent):
        await agent.invoke_async("hello")
    assert await read_histories(tmp_path / "a.db", "default", ["s"]) == [["hello", "fine"]]


@pytest.mark.parametrize("kind", [Graph, Swarm])
async def test_a_graph_and_a_swarm(kind: type[Graph | Swarm]) -> None:
    nodes = [Agent(model(), callback_handler=None, agent_id=name, name=name) for name in ("a", "b")]
    orchestrator = kind({node.name: node for node in nodes}) if kind is Graph else kind(nodes)
    async with Moved(orchestrator):
        assert (await orchestrator.invoke_async("hello")).status.value == "completed"
        assert (await orchestrator.invoke_async("again")).status.value == "completed"


async def test_a_tool_server(tmp_path: Path) -> None:
    client = MCPClient.stdio(sys.executable, [TOYS, str(tmp_path)])
    async with Moved(client):
        result = await client.call_tool_async("1", "add", {"a": 2, "b": 3})
    assert result["content"] == [{"text": "5"}]


async def test_the_operations_on_sessions(tmp_path: Path) -> None:
    await stored_agent(tmp_path).invoke_async("hello")
    sessions = Sessions(SQLiteSessions(tmp_path / "a.db"))
    async with Moved(sessions):
        assert [each.session_id for each in await sessions.list()] == ["s"]


async def test_an_exit_stack_that_is_filled_under_a_timeout_and_closed_elsewhere(tmp_path: Path) -> None:
    async with AsyncExitStack() as filling:
        with anyio.fail_after(20):
            runtime = await filling.enter_async_context(Runtime(sessions=SQLiteSessions(tmp_path / "a.db")))
        stack = filling.pop_all()
    await runtime.agent(AgentSpec(name="default", model=model())).session("s").invoke("hello")
    await in_a_task(stack.aclose)
    assert await read_histories(tmp_path / "a.db", "default", ["s"]) == [["hello", "fine"]]


async def test_a_generator_fixture_whose_halves_run_in_two_tasks() -> None:
    async def fixture() -> AsyncGenerator[Runtime]:
        async with Runtime() as runtime:
            yield runtime

    steps = fixture()
    runtimes: list[Runtime] = []

    async def begin() -> None:
        runtimes.append(await anext(steps))

    async def end() -> None:
        assert await anext(steps, None) is None

    await in_a_task(begin)
    await runtimes[0].agent(AgentSpec(model=model())).session("s").invoke("hello")
    await in_a_task(end)
    assert not runtimes[0].healthy


async def test_runtimes_that_end_in_the_order_in_which_they_began_leave_no_dead_one_for_agents_to_call() -> None:
    first, second = Runtime(), Runtime()
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    assert str(await Agent(model(), callback_handler=None).invoke_async("hello")) == "fine"
    await second.__aexit__(None, None, None)
    assert ambient_host() is None
    assert str(await Agent(model(), callback_handler=None).invoke_async("hello")) == "fine"


async def lose(runtime: Runtime) -> None:
    """End the actors of the runtime, as a cancellation of their task by other code does."""
    root = runtime._host.system._root._child.cell
    assert root is not None
    root.kill()


async def test_a_runtime_that_loses_its_actors_ends_its_block_and_frees_its_sessions(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    with anyio.fail_after(20), pytest.raises(RestartLimitReached):
        async with Runtime(sessions=SQLiteSessions(database)) as runtime:
            await runtime.agent(AgentSpec(name="default", model=model())).session("s").invoke("hello")
            await lose(runtime)
            await anyio.sleep_forever()
    assert await read_histories(database, "default", ["s"]) == [["hello", "fine"]]


async def test_a_runtime_that_loses_its_actors_in_nobodys_block_says_so_where_it_is_left() -> None:
    runtime = Runtime()
    await in_a_task(runtime.__aenter__)
    await lose(runtime)
    with anyio.fail_after(20):
        await runtime._host.system._drained.wait()
        with pytest.raises(RestartLimitReached):
            await in_a_task(lambda: runtime.__aexit__(None, None, None))


def streams(folder: Path) -> dict[str, Agent | Graph]:
    talker = Agent(ScriptedModel(["fine, thanks"], chunk=1, loop=True), callback_handler=None)
    return {"agent": talker, "stored agent": stored_agent(folder), "graph": Graph({"talker": talker})}


@pytest.mark.parametrize("who", ["agent", "stored agent", "graph"])
async def test_a_stream_that_one_task_begins_and_another_closes(tmp_path: Path, who: str) -> None:
    speaker = streams(tmp_path)[who]
    events = speaker.stream_async("hello")
    with anyio.fail_after(20):
        await in_a_task(lambda: anext(events))
        await in_a_task(events.aclose)
        assert [event async for event in speaker.stream_async("hello")]


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("who", ["agent", "stored agent", "graph"])
async def test_a_stream_that_nobody_closes_is_closed_by_the_loop(tmp_path: Path, who: str) -> None:
    """In a task of the loop's own. Trio does so too, with a warning."""
    speaker = streams(tmp_path)[who]
    async for _ in speaker.stream_async("hello"):
        break
    gc.collect()
    with anyio.fail_after(20):
        assert [event async for event in speaker.stream_async("hello")]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
def test_a_loop_that_ends_without_leaving_gives_everything_up_in_order(
    tmp_path: Path, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What was answered is stored, and the sessions are free for the next loop of the process."""

    async def forgetful() -> None:
        runtime = Runtime(sessions=SQLiteSessions(tmp_path / "a.db"))
        await runtime.__aenter__()
        await runtime.agent(AgentSpec(name="default", model=model())).session("r").invoke("hello")

    async def careless() -> None:
        agent = stored_agent(tmp_path)
        await agent.__aenter__()
        await agent.invoke_async("hello")

    threads = set(threading.enumerate())
    anyio.run(forgetful, backend=anyio_backend)
    anyio.run(careless, backend=anyio_backend)
    for thread in set(threading.enumerate()) - threads:
        if not thread.name.startswith("Trio thread"):  # Trio itself keeps those for ten seconds more.
            thread.join(5)  # A worker thread of a loop ends just after it.
            assert not thread.is_alive(), thread
    loops = ("asyncio", "trio.async_generator_errors")
    assert not [record for record in caplog.records if record.name in loops and record.levelno > logging.INFO]
    histories = anyio.run(read_histories, tmp_path / "a.db", "default", ["r", "s"], backend=anyio_backend)
    assert histories == [["hello", "fine"]] * 2
