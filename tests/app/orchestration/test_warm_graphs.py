"""Calls of graphs and swarms outside a block: the actors of runs and nodes stay alive, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from repertory import (
    Agent,
    ExtractionConfig,
    Graph,
    GraphBuilder,
    IntervalTrigger,
    MemoryManager,
    NodeFailed,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    Status,
    Swarm,
    ToolContext,
    Unavailable,
    tool,
)
from repertory.app.host.host import PAUSED_MAX
from repertory.core.messages import Message
from repertory.errors import AgentBusy, ModelFailed
from tests.app.memory.toy_memories import Transcripts
from tests.app.sessions.test_warm_sessions import owner_of, texts
from tests.compat.test_outside_turns import run_to_its_end
from tests.service.embedding_process import started
from tests.service.living import Living

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]
WHERE = pytest.mark.parametrize("where", ["memory", "sqlite"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def clerk(name: str, *answers: Any, delay_s: float = 0.0, **options: Any) -> Agent:
    model = ScriptedModel(list(answers) or [f"{name} has worked"], loop=True, delay_s=delay_s)
    return Agent(model, name=name, callback_handler=None, retry_strategy=None, **options)


async def asked(agent: Agent, *, times: int) -> None:
    """Return when the agent's model was asked so often."""
    for _ in range(6_000):
        if len(cast("ScriptedModel", agent.model).calls) >= times:
            return
        await anyio.sleep(0.005)
    raise AssertionError("the model was not asked")


def manager(path: Path | None) -> Any:
    return None if path is None else SQLiteSessionManager("s", path=path)


def at(where: str, path: Path) -> Path | None:
    return path if where == "sqlite" else None


def line(*agents: Agent, path: Path | None = None) -> Graph:
    """One agent after the other."""
    builder = GraphBuilder()
    for agent in agents:
        builder.add_node(agent, agent.name)
    for before, after in pairwise(agents):
        builder.add_edge(before.name, after.name)
    if path is not None:
        builder.set_session_manager(manager(path))
    return builder.build()


def uses(name: str, tool_name: str, **arguments: Any) -> Agent:
    """An agent that calls a tool in each of its turns, and answers then."""

    def reply(messages: Sequence[Message], *_: object) -> Any:
        answered = any("toolResult" in block for block in messages[-1]["content"])
        return f"{name} is through" if answered else {"toolUse": {"name": tool_name, "input": arguments}}

    return clerk(name, reply, tools=[sign] if tool_name == "sign" else [])


@tool
async def sign(tool_context: ToolContext) -> str:
    """Sign it."""
    return str(tool_context.interrupt("sign", reason=tool_context.agent.name))


def handing(path: Path | None) -> Swarm:
    ann = uses("ann", "handoff_to_agent", agent_name="ben", message="go on")
    return Swarm([ann, clerk("ben")], session_manager=manager(path))


def done(result: Any) -> list[str]:
    assert result.status is Status.COMPLETED
    return sorted(result.results)


# Who else wants the session.


async def test_nobody_owns_the_session_between_two_calls_of_a_graph(path: Path) -> None:
    graph = line(clerk("ann"), clerk("ben"), path=path)
    for number in range(4):
        assert done(await graph.invoke_async(f"task {number}")) == ["ann", "ben"]
        (info,) = await Sessions(SQLiteSessions(path)).list()
        assert info.owner is None


async def test_nobody_owns_the_session_between_two_calls_of_a_swarm(path: Path) -> None:
    swarm = handing(path)
    for number in range(4):
        assert done(await swarm.invoke_async(f"task {number}")) == ["ann", "ben"]
        assert owner_of(path) is None


@WHERE
async def test_nodes_of_a_graph_go_on_with_their_conversations_and_agents_of_a_swarm_begin_anew(
    where: str, path: Path
) -> None:
    ann = clerk("ann")
    graph = line(ann, path=at(where, path))
    for number in range(3):
        await graph.invoke_async(f"task {number}")
    assert len(texts(ann)) == 6
    ben = clerk("ben")
    swarm = Swarm([ben], session_manager=manager(at(where, path)))
    for number in range(3):
        await swarm.invoke_async(f"task {number}")
    assert len(texts(ben)) == 2


@WHERE
async def test_later_calls_start_nothing_that_stays(where: str, path: Path) -> None:
    graph, swarm = line(clerk("ann"), clerk("ben"), path=at(where, path)), handing(None)
    for _ in range(2):
        await graph.invoke_async("Go")
        await swarm.invoke_async("Go")
    before = Living.now()
    for _ in range(5):
        await graph.invoke_async("Go")
        await swarm.invoke_async("Go")
    assert Living.now().has_not_grown_since(before)


async def test_another_graph_object_on_the_same_session_sees_what_the_first_did(path: Path) -> None:
    first, second = (line(clerk("ann"), clerk("ben"), path=path) for _ in range(2))
    for number in range(3):
        await first.invoke_async(f"first {number}")
        await second.invoke_async(f"second {number}")
    ann = second.nodes["ann"].executor
    assert isinstance(ann, Agent)
    assert texts(ann)[0::2] == [f"{which} {number}" for number in range(3) for which in ("first", "second")]


async def test_another_program_may_run_the_graph_in_between(path: Path) -> None:
    ann = clerk("ann")
    graph = line(ann, clerk("ben"), path=path)
    await graph.invoke_async("ours 1")
    other = (
        "import sys; from pathlib import Path; from tests.app.orchestration.test_warm_graphs import *\n"
        "graph = line(clerk('ann'), clerk('ben'), path=Path(sys.argv[1])); graph('theirs'); graph('theirs again')"
    )
    await anyio.to_thread.run_sync(run_to_its_end, other, str(path))
    await graph.invoke_async("ours 2")
    assert texts(ann)[0::2] == ["ours 1", "theirs", "theirs again", "ours 2"]


async def test_an_agent_that_is_open_in_the_session_may_work_at_the_same_time(path: Path) -> None:
    graph = line(clerk("ann", delay_s=0.01), path=path)
    lone = Agent(ScriptedModel(["ok"], loop=True, delay_s=0.02), session_manager=manager(path), callback_handler=None)
    async with anyio.create_task_group() as group:
        for number in range(3):
            group.start_soon(graph.invoke_async, f"task {number}")
            group.start_soon(lone.invoke_async, f"call {number}")
    assert len(texts(lone)) == 6
    assert done(await graph.invoke_async("last")) == ["ann"]
    assert owner_of(path) is None


async def test_a_block_and_a_runtime_may_use_the_run_between_two_calls(path: Path) -> None:
    ann = clerk("ann")
    graph = line(ann, path=path)
    await graph.invoke_async("one")
    async with Runtime():
        await graph.invoke_async("two")
    async with graph:
        await graph.invoke_async("three")
    await graph.invoke_async("four")
    assert texts(ann)[0::2] == ["one", "two", "three", "four"]


# Agents that others use as well.


async def test_an_agent_without_a_store_goes_on_with_its_conversation_as_a_node_and_alone() -> None:
    ann = clerk("ann")
    first, second = line(ann), line(clerk("ben"), ann)
    await first.invoke_async("one")
    await ann.invoke_async("two")
    await second.invoke_async("three")
    await first.invoke_async("four")
    await ann.invoke_async("five")
    said = [text for text in texts(ann) if text in ("one", "two", "four", "five")]
    assert said == ["one", "two", "four", "five"]
    assert len(texts(ann)) >= 10


@WHERE
async def test_a_node_that_works_is_refused_to_others_and_free_when_the_call_has_ended(where: str, path: Path) -> None:
    ann = clerk("ann", delay_s=0.1)
    graph = line(ann, path=at(where, path))
    await graph.invoke_async("warm")
    async with anyio.create_task_group() as group:
        group.start_soon(graph.invoke_async, "work")
        await asked(ann, times=2)
        with pytest.raises(AgentBusy):
            await ann.invoke_async("me too")
        with pytest.raises(NodeFailed):
            await line(ann).invoke_async("and me")
    assert str(await ann.invoke_async("and now")) == "ann has worked"
    assert done(await graph.invoke_async("again")) == ["ann"]


async def test_an_agent_that_works_alone_is_refused_as_a_node() -> None:
    ann = clerk("ann", delay_s=0.1)
    graph = line(ann)
    await graph.invoke_async("warm")
    async with anyio.create_task_group() as group:
        group.start_soon(ann.invoke_async, "work")
        await asked(ann, times=2)
        with pytest.raises(NodeFailed):
            await graph.invoke_async("me too")
    assert done(await graph.invoke_async("and now", resume=False)) == ["ann"]


@WHERE
async def test_a_nested_graph_may_be_called_alone_in_between(where: str, path: Path) -> None:
    ann = clerk("ann")
    inner = line(ann)
    builder = GraphBuilder()
    builder.add_node(inner, "inner")
    builder.add_node(clerk("ben"), "ben")
    builder.add_edge("inner", "ben")
    if where == "sqlite":
        builder.set_session_manager(manager(path))
    outer = builder.build()
    for number in range(3):
        assert done(await outer.invoke_async(f"outer {number}")) == ["ben", "inner"]
        assert done(await inner.invoke_async(f"inner {number}")) == ["ann"]


# What a call sees.


@pytest.mark.parametrize("sync", [False, True])
def test_a_model_that_an_agent_of_a_swarm_gets_between_two_calls_is_asked_by_the_next(sync: bool) -> None:
    ann = clerk("ann", "before")
    swarm = Swarm([ann])

    def call() -> str:
        return str(swarm("Go").results["ann"].result)

    async def both() -> list[str]:
        first = await swarm.invoke_async("Go")
        ann.model = ScriptedModel(["after"], loop=True)
        return [str(each.results["ann"].result) for each in (first, await swarm.invoke_async("Go"))]

    if sync:
        answers = [call()]
        ann.model = ScriptedModel(["after"], loop=True)
        answers.append(call())
    else:
        answers = anyio.run(both)
    assert answers == ["before", "after"]


async def test_attributes_that_change_between_two_calls_count_from_the_next_on() -> None:
    graph = line(clerk("ann", delay_s=0.2))
    await graph.invoke_async("one")
    graph.node_timeout = 0.05
    with pytest.raises(NodeFailed):
        await graph.invoke_async("two", resume=False)
    graph.node_timeout = None
    assert done(await graph.invoke_async("three", resume=False)) == ["ann"]


async def test_a_snapshot_between_two_calls_holds_what_another_object_has_done_since(path: Path) -> None:
    first, second = (line(clerk("ann"), path=path) for _ in range(2))
    await first.invoke_async("one")
    await second.invoke_async("two")
    assert "two" in str((await first.save_snapshot_async()).to_dict())
    await second.invoke_async("three")
    snapshot = await first.save_snapshot_async()
    assert "three" in str(snapshot.to_dict())
    await second.load_snapshot_async(snapshot)
    assert done(await first.invoke_async("four", resume=False)) == ["ann"]


# Questions, failures, cancellation.


@WHERE
async def test_a_run_that_waits_for_a_person_goes_on_with_the_answer(where: str, path: Path) -> None:
    graph = line(uses("ann", "sign"), uses("ben", "sign"), path=at(where, path))
    for _ in range(2):
        asked = await graph.invoke_async("Go")
        for name in ("ann", "ben"):
            assert asked.status is Status.INTERRUPTED
            (question,) = asked.interrupts
            assert question.reason == name
            answer = [{"interruptResponse": {"interruptId": question.id, "response": "yes"}}]
            asked = await graph.invoke_async(answer)  # type: ignore[arg-type]
        assert done(asked) == ["ann", "ben"]


async def test_an_answer_may_be_given_to_another_object_and_the_first_goes_on_behind_it(path: Path) -> None:
    first, second = (line(uses("ann", "sign"), uses("ben", "sign"), path=path) for _ in range(2))
    graphs = [first, second]
    asked = await first.invoke_async("Go")
    for turn in (1, 0):
        (question,) = asked.interrupts
        answer = [{"interruptResponse": {"interruptId": question.id, "response": "yes"}}]
        asked = await graphs[turn].invoke_async(answer)  # type: ignore[arg-type]
    assert done(asked) == ["ann", "ben"]


@WHERE
async def test_a_run_whose_node_failed_goes_on_where_it_stopped(where: str, path: Path) -> None:
    ann, ben = clerk("ann"), clerk("ben")
    graph = line(ann, ben, path=at(where, path))
    for _ in range(2):
        ben.model = ScriptedModel([ModelFailed("no")])
        with pytest.raises(NodeFailed):
            await graph.invoke_async("Go")
        ben.model = ScriptedModel(["ok"])
        result = await graph.invoke_async(None)
        assert result.resumed
        assert done(result) == ["ann", "ben"]
    assert len(texts(ann)) == 4


@WHERE
async def test_a_call_that_was_cancelled_leaves_a_run_for_the_next(where: str, path: Path) -> None:
    graph = line(clerk("ann", delay_s=0.02), clerk("ben", delay_s=0.02), path=at(where, path))
    await graph.invoke_async("warm")
    for after_s in (0.0, 0.001, 0.01, 0.03, 0.05, 0.08):
        with anyio.move_on_after(after_s):
            await graph.invoke_async("cut short", resume=False)
    if where == "sqlite":
        assert owner_of(path) is None
    assert done(await graph.invoke_async("last", resume=False)) == ["ann", "ben"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("kind", ["graph", "swarm"])
async def test_a_call_that_asyncio_cancels_at_any_moment_leaves_the_run_to_others(
    kind: str, times: int, path: Path
) -> None:
    """No shield stops such a cancellation, and it may come again while the call still ends."""
    runs: Any = line(clerk("ann"), clerk("ben"), path=path) if kind == "graph" else handing(path)
    await runs.invoke_async("one")
    for moment in range(30):
        call = asyncio.create_task(runs.invoke_async("cut short", resume=False))
        for _ in range(moment):
            await asyncio.sleep(0.0005 * (moment % 2))
        for _ in range(times):
            call.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([call])
        if moment % 3 == 0:  # The next call comes at once.
            assert "ben" in done(await runs.invoke_async("at once", resume=False))
        await asyncio.sleep(0.02)
        for _ in range(6_000):
            if owner_of(path) is None:
                break
            await asyncio.sleep(0.005)
        else:
            pytest.fail(f"the session was not given up after {moment} steps")
    assert done(await runs.invoke_async("two", resume=False)) == ["ann", "ben"]


@WHERE
async def test_cancelling_between_two_calls_cancels_nothing(where: str, path: Path) -> None:
    ann = clerk("ann")
    for runs in (line(ann, clerk("ben"), path=at(where, path)), handing(None)):
        for number in range(3):
            assert done(await runs.invoke_async(f"task {number}")) == ["ann", "ben"]
            runs.cancel()
            ann.cancel()


async def test_a_stream_may_be_left_and_the_graph_called_again(path: Path) -> None:
    graph = line(clerk("ann", delay_s=0.01), clerk("ben"), path=path)
    await graph.invoke_async("one")
    stream = graph.stream_async("two")
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    assert done(await graph.invoke_async("two")) == ["ann", "ben"]
    assert owner_of(path) is None


# How much stays.


async def test_nodes_count_among_the_sessions_that_may_stay() -> None:
    wide = 20
    graphs = [
        Graph({f"n{number}": clerk(f"n{number}") for number in range(wide)}) for _ in range(PAUSED_MAX // wide + 8)
    ]
    before = Living.now().tasks
    tasks: list[int] = []
    for graph in graphs:
        await graph.invoke_async("one")
        tasks.append(Living.now().tasks - before)
    assert max(tasks) <= PAUSED_MAX + wide + 1 < len(graphs) * (wide + 1)  # The last graph may be in use.
    for graph in graphs:
        assert len(done(await graph.invoke_async("two"))) == wide


async def test_shutting_an_agent_down_ends_it_as_a_node_too() -> None:
    ann = clerk("ann")
    graph = line(ann, clerk("ben"))
    await graph.invoke_async("one")
    before = Living.now().tasks
    await ann.shutdown_async()
    assert Living.now().tasks < before
    assert done(await graph.invoke_async("two")) == ["ann", "ben"]
    assert len(texts(ann)) == 4


# Loops, threads and processes.

LOOPS = """
import asyncio, gc, os, sys, threading, trio
from pathlib import Path
from repertory import *
from tests.app.orchestration.test_warm_graphs import clerk, done, handing, line

path = None if sys.argv[1] == "memory" else Path(sys.argv[1])
graph = line(clerk("ann"), clerk("ben"), path=path)
swarm = handing(None if path is None else path.with_name("swarm.db"))

def called(run):
    for each in (graph, swarm):
        assert done(run(each)) == ["ann", "ben"]

waits = asyncio.new_event_loop()  # It runs now and then, and is never closed.
for _ in range(3):
    called(lambda each: asyncio.run(each.invoke_async("a loop of its own")))
    called(lambda each: trio.run(each.invoke_async, "trio"))
    called(lambda each: each("from sync code"))
    called(lambda each: waits.run_until_complete(each.invoke_async("a loop that waits")))
    closed = asyncio.new_event_loop()
    called(lambda each: closed.run_until_complete(each.invoke_async("a loop that is closed")))
    closed.close()

    async def all_of_it():
        for each in (graph, swarm):
            await each.invoke_async("before")
            await asyncio.to_thread(each, "from a thread")
            assert done(await each.invoke_async("after")) == ["ann", "ben"]

    asyncio.run(all_of_it())
for _ in range(10):
    closed = asyncio.new_event_loop()
    called(lambda each: closed.run_until_complete(each.invoke_async("many loops")))
    closed.close()
    del closed
    gc.collect()
names = [thread.name for thread in threading.enumerate()]
assert len(names) < 10, names
assert len(os.listdir("/proc/self/fd")) < 60
"""


@WHERE
def test_graphs_and_swarms_may_be_called_in_one_loop_after_the_other(where: str, path: Path) -> None:
    finished = run_to_its_end(LOOPS, "memory" if where == "memory" else str(path))
    assert finished.stderr == ""


ENDS = """
import asyncio, sys, trio
from pathlib import Path
from repertory import *
from tests.app.orchestration.test_warm_graphs import clerk, done, handing, line

path = Path(sys.argv[1])
slow = line(clerk("ann", delay_s=30.0), path=path)

async def main():
    await line(clerk("cat"), path=path.with_name("other.db")).invoke_async("warm")
    left = asyncio.create_task(slow.invoke_async("never ends"))
    await asyncio.sleep(0.3)

asyncio.run(main())  # It cancels the call.
result = asyncio.run(line(clerk("ann"), path=path).invoke_async("never ends"))
assert result.resumed and done(result) == ["ann"]
"""


def test_a_loop_that_ends_while_a_graph_is_called_ends_the_call_and_leaves_its_run_to_others(path: Path) -> None:
    finished = run_to_its_end(ENDS, str(path))
    assert finished.stderr == ""


IDLE = """
import asyncio, sys
from pathlib import Path
from tests.app.orchestration.test_warm_graphs import clerk, line

graph = line(clerk("ann"), clerk("ben"), path=Path(sys.argv[1]))

async def main():
    for number in range(3):
        await graph.invoke_async(f"task {number}")
    print("called", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_process_that_is_killed_between_two_calls_has_lost_nothing_and_hinders_nobody(path: Path) -> None:
    ann = clerk("ann")
    graph = line(ann, clerk("ben"), path=path)
    with started("-c", IDLE, str(path), folder=path.parent) as program:
        await anyio.to_thread.run_sync(program.wait_for, "called")
        await graph.invoke_async("while it lives")
        program.kill()
    await graph.invoke_async("after its death")
    assert texts(ann)[0::2] == ["task 0", "task 1", "task 2", "while it lives", "after its death"]


async def test_a_session_that_was_deleted_between_two_calls_begins_anew(path: Path) -> None:
    ann = clerk("ann")
    graph = line(ann, path=path)
    await graph.invoke_async("one")
    await Sessions(SQLiteSessions(path)).delete("s")
    assert done(await graph.invoke_async("two")) == ["ann"]
    assert texts(ann)[0::2] == ["two"]


# What nodes bring with them.


async def test_a_tool_of_a_node_sees_the_context_variables_of_its_own_call() -> None:
    request = contextvars.ContextVar("request", default="none")
    seen: list[str] = []

    @tool(name="look")
    async def look() -> str:
        """Look at the request."""
        seen.append(request.get())
        return "seen"

    use = {"toolUse": {"name": "look", "input": {}}}
    ann = clerk("ann", use, "ok", use, "ok", use, "ok", tools=[look])
    graph = line(ann, clerk("ben"))
    for name in ("one", "two", "three"):
        request.set(name)
        await graph.invoke_async(name)
    assert seen == ["one", "two", "three"]


@WHERE
async def test_a_node_with_a_memory_is_counted_over_the_calls_of_its_graph(where: str, path: Path) -> None:
    store = Transcripts(extraction=ExtractionConfig(trigger=IntervalTrigger(2)))
    memory = MemoryManager(stores=[store], injection=False)
    ann = clerk("ann", memory_manager=memory)
    graph = line(ann, clerk("ben"), path=at(where, path))
    for number in range(1, 6):
        await graph.invoke_async(f"q{number}", resume=False)
        assert len(store.batches) == number // 2
        if where == "sqlite":
            assert owner_of(path) is None
    assert [batch[::2] for batch in store.batches] == [["q1", "q2"], ["q3", "q4"]]


@WHERE
async def test_a_store_that_is_away_for_a_node_gets_all_when_it_is_back(where: str, path: Path) -> None:
    store = Transcripts(extraction=ExtractionConfig(trigger=IntervalTrigger(1)))
    memory = MemoryManager(stores=[store], injection=False)
    graph = line(clerk("ann", memory_manager=memory), path=at(where, path))
    store.down = Unavailable("away")
    await graph.invoke_async("q1")
    store.down = None
    await graph.invoke_async("q2")
    await graph.invoke_async("q3")
    assert [text for batch in store.batches for text in batch[::2]] == ["q1", "q2", "q3"]
