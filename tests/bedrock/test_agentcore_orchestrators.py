"""Graphs and swarms whose session is in AgentCore Memory: the next process goes on, whatever became of the last one."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repertory import (
    Agent,
    AgentCoreMemoryConfig,
    AgentCoreMemorySessionManager,
    Graph,
    NodeFailed,
    ScriptedModel,
    Sessions,
    Status,
    Swarm,
    ToolContext,
    tool,
)
from repertory.backends.sessions.agentcore import reading as agentcore_reading
from tests.backends.sessions.agentcore_memory import ACTOR, MEMORY
from tests.backends.sessions.agentcore_server import MemoryServer, agentcore_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

_numbers = itertools.count()
JOURNAL = "multi_agent.default_graph"


@pytest.fixture(scope="module")
def running() -> Iterator[MemoryServer]:
    with agentcore_server() as server:
        yield server


@pytest.fixture
def server(running: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> MemoryServer:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    running.operations()
    return running


@pytest.fixture
def session_id() -> str:
    """A session for this test alone."""
    return f"run-{next(_numbers)}"


def manager(url: str, session_id: str, *, takeover: bool = False) -> AgentCoreMemorySessionManager:
    config = AgentCoreMemoryConfig(memory_id=MEMORY, session_id=session_id, actor_id=ACTOR)
    return AgentCoreMemorySessionManager(config, region_name="us-east-1", endpoint_url=url, takeover=takeover)


def down(*_: object) -> object:
    raise RuntimeError


def node(*replies: Any, name: str = "agent", **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), name=name, callback_handler=None, **options)


def graph(placement: AgentCoreMemorySessionManager, *replies: Any) -> Graph:
    """Nodes `a` and `b`, in a row."""
    return Graph(dict(zip("ab", map(node, replies), strict=True)), session_manager=placement)


async def test_a_run_that_failed_is_gone_on_with_and_the_next_one_is_another(
    server: MemoryServer, session_id: str
) -> None:
    with pytest.raises(NodeFailed):
        await graph(manager(server.url, session_id), "A", down).invoke_async("Do it")
    result = await graph(manager(server.url, session_id), "never", "B").invoke_async("Do it")
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 1, "a: A\nb: B")
    result = await graph(manager(server.url, session_id), "A2", "B2").invoke_async("Again")
    assert (result.run, str(result)) == (2, "a: A2\nb: B2")
    sessions = Sessions(manager(server.url, session_id).sessions)
    shown = (await sessions.show(session_id)).agents
    assert sorted(shown) == ["default_graph.a", "default_graph.b", JOURNAL]
    assert len(shown["default_graph.a"].messages) == 4, "its conversation of both runs"
    run = shown[JOURNAL].run
    assert run is not None
    assert (run["status"], run["execution_order"]) == ("completed", ["a", "b"])
    assert (await sessions.doctor()).ok
    await sessions.delete(session_id)
    assert server.memory.events(session_id) == []


async def test_an_orchestrator_has_no_record_of_an_agent(server: MemoryServer, session_id: str) -> None:
    await graph(manager(server.url, session_id), "A", "B").invoke_async("Do it")
    found = [event.fields.get("metadata") or {} for event in server.memory.events(session_id)]
    agents = [each["agentId"]["stringValue"] for each in found if "agentId" in each]
    assert set(agents) == {"default_graph.a", "default_graph.b"}


async def test_a_swarm_and_its_handoffs_are_gone_on_with(server: MemoryServer, session_id: str) -> None:
    told = {"agent_name": "b", "message": "over to you", "context": {"found": 7}}
    handing = {"toolUse": {"name": "handoff_to_agent", "input": told}}

    def swarm(*replies: Any) -> Swarm:
        agents = [node(handing, "A", name="a"), node(*replies, name="b")]
        return Swarm(agents, session_manager=manager(server.url, session_id))

    with pytest.raises(NodeFailed):
        await swarm(down).invoke_async("Do it")
    made = swarm("B")
    result = await made.invoke_async("Do it")
    assert (result.status, result.run, result.resumed) == (Status.COMPLETED, 1, True)
    assert str(result) == "a: A\nb: B"


async def test_an_answer_reaches_the_node_that_asked_in_the_next_process(server: MemoryServer, session_id: str) -> None:
    @tool
    def ask(tool_context: ToolContext) -> str:
        """Ask."""
        return str(tool_context.interrupt("approval", reason="?"))

    def asking(*replies: Any) -> Graph:
        nodes = {"a": node("A"), "b": node(*replies, tools=[ask])}
        return Graph(nodes, session_manager=manager(server.url, session_id))

    result = await asking({"toolUse": {"name": "ask", "input": {}}}).invoke_async("Do it")
    assert result.status is Status.INTERRUPTED
    answer: Any = [{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "yes"}}]
    result = await asking("done").invoke_async(answer)
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 1, "a: A\nb: done")


async def test_a_graph_within_a_graph_keeps_its_own_run(server: MemoryServer, session_id: str) -> None:
    def outer(reply: Any) -> Graph:
        inner = Graph({"one": node("I"), "two": node(reply)}, id="inner")
        return Graph({"a": node("A"), "team": inner}, session_manager=manager(server.url, session_id))

    with pytest.raises(NodeFailed):
        await outer(down).invoke_async("Do it")
    result = await outer("II").invoke_async("Do it")
    assert (result.status, str(result)) == (Status.COMPLETED, "a: A\nteam: one: I\ntwo: II")


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from repertory import Agent, ScriptedModel
from tests.bedrock.test_agentcore_orchestrators import graph, manager

def wait(*_):
    print("begun", flush=True)
    sys.stdin.read()

graph(manager(sys.argv[2], sys.argv[3]), "A", wait)("Do it")
"""


def test_a_run_of_a_process_that_was_killed_is_gone_on_with(server: MemoryServer, session_id: str) -> None:
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parents[3]), server.url, session_id]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"begun\n"
    child.send_signal(signal.SIGKILL)
    child.wait(20)
    child.stdout.close()
    child.stdin.close()
    result = graph(manager(server.url, session_id, takeover=True), "never", "B")("Do it")
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 1, "a: A\nb: B")


async def test_what_others_say_in_the_session_is_not_said_to_the_orchestrator(
    server: MemoryServer, session_id: str
) -> None:
    with pytest.raises(NodeFailed):
        await graph(manager(server.url, session_id), "A", down).invoke_async("Do it")
    payload = [{"conversational": {"content": {"text": "from outside"}, "role": "USER"}}]
    params = {"memoryId": MEMORY, "actorId": ACTOR, "sessionId": session_id, "payload": payload}
    server.memory.call("CreateEvent", {**params, "eventTimestamp": time.time()})
    result = await graph(manager(server.url, session_id), "never", "B").invoke_async("Do it")
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 1, "a: A\nb: B")
    shown = (await Sessions(manager(server.url, session_id).sessions).show(session_id)).agents
    assert shown[JOURNAL].messages == []


@pytest.mark.parametrize("left", [0.7, 0.1])
async def test_a_run_whose_beginning_has_expired_makes_room_for_the_next_one(
    server: MemoryServer, session_id: str, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service removes events by their age, whatever depends on them."""
    monkeypatch.setattr(agentcore_reading, "EXPIRY_S_MIN", 0.0)  # As if a day had gone by.
    await graph(manager(server.url, session_id), "A", "B").invoke_async("Do it")
    there = len(server.memory.events(session_id))
    server.memory.expire(session_id, there - int(there * left))
    result = await graph(manager(server.url, session_id), "A2", "B2").invoke_async("Again", resume=False)
    assert (result.status, str(result)) == (Status.COMPLETED, "a: A2\nb: B2")


async def test_a_run_asks_little_of_the_memory(server: MemoryServer, session_id: str) -> None:
    async with graph(manager(server.url, session_id), "A", "B") as opened:
        await opened.invoke_async("Do it")
    asked = server.operations()
    assert asked.count("CreateEvent") <= 12, asked
