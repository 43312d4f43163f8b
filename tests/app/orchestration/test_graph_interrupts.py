"""Runs that wait for people: tools and hooks ask, the call returns, and answers go on with it, after restarts too."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from repertory import (
    Agent,
    BeforeNodeCallEvent,
    BeforeToolCallEvent,
    Graph,
    GraphBuilder,
    MultiAgentResult,
    NodeFailed,
    ScriptedModel,
    Status,
    Swarm,
    ToolContext,
    tool,
)
from repertory.app.orchestration.orchestrator import Orchestrator
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.tools.function_tool import schema_class
from repertory.core.messages import Message
from repertory.errors import InterruptExpired, InterruptNotFound, InterruptsWaiting
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class Office:
    """Where sessions are kept, and what was done in the world."""

    def __init__(self) -> None:
        self.shelf = SessionShelf()
        self.key = f"office {id(self)}"
        self.done: Counter[str] = Counter()

    def open_store(self) -> MemorySessionStore:
        return MemorySessionStore(self.shelf, owner=f"owner {id(object())}")

    @property
    def session(self) -> PlacedSession:
        return PlacedSession("s", self, takeover=True)

    def clerk(self, name: str, *, asks: bool = True, expires_s: float | None = None) -> Agent:
        """Does something when a person agrees to it."""

        @tool(name="sign")
        async def sign(tool_context: ToolContext) -> str:
            """Sign it."""
            if asks:
                answer = tool_context.interrupt("sign", reason={"who": name}, expires_s=expires_s)
                if answer != "yes":
                    return f"not signed: {answer}"
            self.done[name] += 1
            return "signed"

        def reply(messages: Sequence[Message], *_: object) -> Any:
            signed = all("toolResult" in block for block in messages[-1]["content"])
            return f"{name} is through" if signed else {"toolUse": {"name": "sign", "input": {}}}

        return Agent(ScriptedModel([reply], loop=True), tools=[sign], name=name, callback_handler=None)


def answers(result: MultiAgentResult, response: Any = "yes", *, only: str = "") -> Any:
    """Answers to what the result asks."""
    return [
        {"interruptResponse": {"interruptId": each.id, "response": response}}
        for each in result.interrupts
        if not only or (isinstance(each.reason, dict) and each.reason.get("who") == only)
    ]


def asked(result: MultiAgentResult) -> list[Any]:
    return sorted(each.reason["who"] for each in result.interrupts if isinstance(each.reason, dict))


async def test_a_run_waits_for_people_and_goes_on_with_their_answers_after_a_restart() -> None:
    office = Office()

    def graph() -> Graph:
        nodes = {
            "first": office.clerk("first", asks=False),
            "second": office.clerk("second"),
            "third": office.clerk("c"),
        }
        return Graph(nodes, session_manager=office.session)

    result = await graph().invoke_async("Sign it")
    assert (result.status, asked(result), dict(office.done)) == (Status.INTERRUPTED, ["second"], {"first": 1})
    result = await graph().invoke_async(answers(result))
    assert (result.status, asked(result), result.resumed) == (Status.INTERRUPTED, ["c"], True)
    result = await graph().invoke_async(answers(result))
    assert (result.status, dict(office.done)) == (Status.COMPLETED, {"first": 1, "second": 1, "c": 1})
    assert str(result.results["second"]) == "second is through"


async def test_several_nodes_ask_at_once_and_are_answered_one_by_one() -> None:
    office = Office()

    def graph() -> Graph:
        builder = GraphBuilder().set_session_manager(office.session)
        for name in ("a", "b"):
            builder.add_node(office.clerk(name), name)
        builder.add_node(office.clerk("c", asks=False), "c")
        builder.add_node(office.clerk("join", asks=False), "join")
        for name in ("a", "b", "c"):
            builder.add_edge(name, "join")
        return builder.build()

    result = await graph().invoke_async("Go")
    assert (asked(result), dict(office.done)) == (["a", "b"], {"c": 1})
    result = await graph().invoke_async(answers(result, only="b"))
    assert (result.status, asked(result), dict(office.done)) == (Status.INTERRUPTED, ["a"], {"b": 1, "c": 1})
    result = await graph().invoke_async(answers(result, "no"))
    assert (result.status, dict(office.done)) == (Status.COMPLETED, {"b": 1, "c": 1, "join": 1})
    assert "not signed: no" in str(office.shelf.sessions["s"].journals["default_graph.a"])


async def test_a_hook_may_ask_before_a_node_runs() -> None:
    office = Office()
    calls: Counter[str] = Counter()

    def graph() -> Graph:
        made = Graph({"a": office.clerk("a", asks=False), "b": office.clerk("b")}, session_manager=office.session)

        def approve(event: BeforeNodeCallEvent) -> None:
            calls[event.node_id] += 1
            if event.node_id == "b" and event.interrupt("approve", reason={"who": "boss"}) != "yes":
                event.cancel_node = "the boss said no"

        made.add_hook(approve)
        return made

    result = await graph().invoke_async("Go")
    assert (result.status, asked(result), dict(calls)) == (Status.INTERRUPTED, ["boss"], {"a": 1, "b": 1})
    assert result.interrupts[0].id.startswith("v1:before_node_call:")
    waits = await graph().invoke_async(answers(result))
    assert asked(waits) == ["b"]
    result = await graph().invoke_async(answers(waits))
    assert (result.status, dict(office.done)) == (Status.COMPLETED, {"a": 1, "b": 1})

    result = await graph().invoke_async("Once more")
    with pytest.raises(NodeFailed, match="the boss said no"):
        await graph().invoke_async(answers(result, "no"))


async def test_swarms_and_nested_orchestrators_wait_as_well() -> None:
    office = Office()
    handing = {"toolUse": {"name": "handoff_to_agent", "input": {"agent_name": "b", "message": "yours"}}}

    def graph() -> Orchestrator:
        first = Agent(ScriptedModel([handing, "over"]), name="a", callback_handler=None)
        team = Swarm([first, office.clerk("b")], id="team")
        inner = Graph({"x": office.clerk("x")}, id="inner")
        nodes = {"team": team, "inner": inner, "z": office.clerk("z", asks=False)}
        return Graph(nodes, session_manager=office.session)

    result = await graph().invoke_async("Go")
    assert asked(result) == ["b"]
    result = await graph().invoke_async(answers(result))
    assert asked(result) == ["x"]
    result = await graph().invoke_async(answers(result))
    assert (result.status, dict(office.done)) == (Status.COMPLETED, {"b": 1, "x": 1, "z": 1})


async def test_what_is_no_answer_is_refused_and_changes_nothing() -> None:
    office = Office()
    graph = Graph({"a": office.clerk("a")}, session_manager=office.session)
    result = await graph.invoke_async("Go")
    with pytest.raises(InterruptsWaiting):
        await graph.invoke_async("Go")
    assert (await graph.invoke_async()).interrupts == result.interrupts
    with pytest.raises(InterruptNotFound):
        await graph.invoke_async([{"interruptResponse": {"interruptId": "zz", "response": 1}}])  # type: ignore[list-item]
    result = await graph.invoke_async(answers(result))
    assert result.status is Status.COMPLETED
    with pytest.raises(InterruptNotFound):
        await graph.invoke_async(answers(result) or [{"interruptResponse": {"interruptId": "old", "response": 1}}])


async def test_a_run_that_waits_may_be_given_up() -> None:
    office = Office()
    graph = Graph({"a": office.clerk("a")}, session_manager=office.session)
    await graph.invoke_async("Go")
    result = await graph.invoke_async("Another", resume=False)
    assert (result.run, asked(result)) == (2, ["a"])


async def test_a_question_that_nobody_answers_in_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office()

    def graph() -> Graph:
        return Graph({"a": office.clerk("a", expires_s=60)}, session_manager=office.session)

    result = await graph().invoke_async("Go")
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 61)
    with pytest.raises(InterruptExpired):
        await graph().invoke_async(answers(result))
    result = await graph().invoke_async()
    assert (result.status, dict(office.done)) == (Status.COMPLETED, {})


async def test_a_hook_that_nobody_answers_in_time_fails_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph({"a": Office().clerk("a", asks=False)})
    graph.add_hook(lambda event: event.interrupt("ok?", expires_s=60), BeforeNodeCallEvent)
    await graph.invoke_async("Go")
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 61)
    with pytest.raises(NodeFailed, match="nobody answered in time"):
        await graph.invoke_async()


async def test_what_is_asked_is_streamed() -> None:
    graph = Graph({"a": Office().clerk("a")})
    events = [event async for event in graph.stream_async("Go")]
    assert [event["type"] for event in events if event["type"] != "multiagent_node_stream"] == [
        "multiagent_node_start",
        "multiagent_node_interrupt",
        "multiagent_result",
    ]


async def test_hooks_of_agents_ask_in_nodes_too() -> None:
    office = Office()
    clerk = office.clerk("a", asks=False)
    clerk.add_hook(lambda event: event.interrupt("tool?", reason={"who": "hook"}) and None, BeforeToolCallEvent)
    graph = Graph({"a": clerk})
    result = await graph.invoke_async("Go")
    assert asked(result) == ["hook"]
    result = await graph.invoke_async(answers(result))
    assert (result.status, dict(office.done)) == (Status.COMPLETED, {"a": 1})
