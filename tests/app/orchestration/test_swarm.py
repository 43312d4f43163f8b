"""Swarms: who gets control, what each agent is told, and when a run ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from anyio.lowlevel import checkpoint
from pydantic import BaseModel

from repertory import (
    AfterInvocationEvent,
    Agent,
    BeforeMultiAgentInvocationEvent,
    Budget,
    Graph,
    GraphBuilder,
    HookProvider,
    HookRegistry,
    MultiAgentInitializedEvent,
    MultiAgentResult,
    NodeFailed,
    ScriptedModel,
    SlidingWindowConversationManager,
    Status,
    Swarm,
    tool,
)
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.tools.function_tool import schema_class
from repertory.core.orchestration.plan import handoff_in
from repertory.errors import Invalid, ModelFailed
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from tests.app.orchestration.recorder import On

pytestmark = pytest.mark.anyio
schema_class()  # Loading it takes a thread, and time on these clocks stands still or jumps.


def handing(to: str, message: str = "please", **context: Any) -> Any:
    given = {"agent_name": to, "message": message, **({"context": context} if context else {})}
    return {"toolUse": {"name": "handoff_to_agent", "input": given}}


def agent(name: str, *replies: Any, **more: Any) -> Agent:
    return Agent(ScriptedModel(replies or ("fine",), loop=True), name=name, callback_handler=None, **more)


def history(result: MultiAgentResult) -> list[str]:
    return [node.node_id for node in result.node_history]  # type: ignore[attr-defined]


def told(node: Agent) -> str:
    block = next(message for message in node.messages if message["role"] == "user")["content"][0]
    assert "text" in block
    return block["text"]


async def test_whoever_has_control_may_hand_it_over_with_words_and_values() -> None:
    first = agent("first", handing("second", "You know this", part="roof"), "handed over")
    second = agent("second", "all done", description="Knows roofs")
    result = await Swarm([first, second]).invoke_async("Mend the shed")
    assert (result.status, history(result)) == (Status.COMPLETED, ["first", "second"])
    assert str(result) == "first: handed over\nsecond: all done"
    assert "Agent name: second. Agent description: Knows roofs" in told(first)
    assert told(second).startswith("Context:\nHandoff Message: You know this\n\nUser Request: Mend the shed\n\n")
    assert "Previous agents who worked on this: first\n" in told(second)
    assert "• first: {'part': 'roof'}" in told(second)


async def test_a_swarm_begins_with_its_entry_point() -> None:
    last = agent("b")
    assert history(await Swarm(nodes=[agent("a"), last], entry_point=last).invoke_async("Go")) == ["b"]
    assert history(await Swarm(agents=[agent("a"), agent("b")]).invoke_async("Go")) == ["a"]


async def test_handing_over_to_nobody_is_an_error_for_the_model() -> None:
    lone = agent("a", handing("zed"), "then I do it")
    result = await Swarm([lone]).invoke_async("Go")
    assert (history(result), str(result)) == (["a"], "a: then I do it")
    assert "not found in swarm" in str(lone.messages[2])


async def test_an_agent_begins_anew_each_time_and_its_whole_history_stays() -> None:
    shelf = SessionShelf()

    class Place:
        key = f"shelf {id(shelf)}"

        def open_store(self) -> MemorySessionStore:
            return MemorySessionStore(shelf)

    first = agent("a", handing("b"), "one", handing("b"), "two")
    second = agent("b", handing("a"), "back", "over")
    swarm = Swarm([first, second], session_manager=PlacedSession("s", Place()))
    result = await swarm.invoke_async("Go")
    assert history(result) == ["a", "b", "a", "b"]
    assert len(first.messages) == 4
    kept = [row for row in shelf.sessions["s"].journals["default_swarm.a"] if row.kind == 1]
    assert len(kept) == 8


@pytest.mark.parametrize(
    ("limits", "reason", "count"),
    [
        ({"max_handoffs": 3}, "Max handoffs reached: 3", 3),
        ({"max_iterations": 4}, "Max iterations reached: 4", 4),
        (
            {"repetitive_handoff_detection_window": 4, "repetitive_handoff_min_unique_agents": 3},
            "Repetitive handoff: 2 unique nodes out of 4 recent iterations",
            4,
        ),
    ],
    ids=["handoffs", "iterations", "circles"],
)
async def test_a_swarm_that_does_not_end_is_ended(limits: dict[str, int], reason: str, count: int) -> None:
    circle = [agent("a", *[handing("b"), "to b"] * 9), agent("b", *[handing("a"), "to a"] * 9)]
    result = await Swarm(circle, **limits).invoke_async("Go")
    assert (result.status, result.reason, len(history(result))) == (Status.FAILED, reason, count)


async def test_an_agent_that_takes_too_long_fails_the_run_which_can_be_gone_on_with() -> None:
    slow = Agent(ScriptedModel(["late"], delay_s=100), name="b", callback_handler=None)
    first = agent("a", handing("b", k=1), "handed")
    swarm = Swarm([first, slow], node_timeout=30)
    with pytest.raises(NodeFailed, match="timed out after 30s"):
        await swarm.invoke_async("Go")
    slow.model = ScriptedModel(["quick"])
    result = await swarm.invoke_async("Go")
    assert (result.status, result.resumed, str(result)) == (Status.COMPLETED, True, "a: handed\nb: quick")
    assert "• a: {'k': 1}" in told(slow)
    assert told(slow).startswith("Context:\nHandoff Message: please\n")


async def test_a_swarm_is_a_node_of_a_graph() -> None:
    team = Swarm([agent("a", handing("b"), "one"), agent("b", "two")])
    last = agent("last", "three")
    result = await Graph({"team": team, "last": last}).invoke_async("Go")
    assert result.execution_count == 3
    assert "  - Agent: two" in [block.get("text") for block in last.messages[0]["content"]]


async def test_what_was_handed_over_is_told_on_the_way() -> None:
    swarm = Swarm([agent("a", handing("b", "do it"), "one"), agent("b")])
    events = [event async for event in swarm.stream_async("Go") if event["type"] == "multiagent_handoff"]
    assert events == [{"type": "multiagent_handoff", "from_node_ids": ["a"], "to_node_ids": ["b"], "message": "do it"}]


def test_the_last_handoff_that_was_carried_out_counts() -> None:
    def turn(use: Any, status: Any = "success") -> list[Any]:
        return [
            {"role": "user", "content": [{"text": "go"}]},
            {"role": "assistant", "content": [{"toolUse": {**use["toolUse"], "toolUseId": "t"}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "status": status, "content": []}}]},
            {"role": "assistant", "content": [{"text": "fine"}]},
        ]

    assert handoff_in([*turn(handing("a")), *turn(handing("b", x=1))], ["a", "b"]) == ({"x": 1}, ("b", "please"))
    assert handoff_in([*turn(handing("a")), *turn(handing("b"), "error")], ["a", "b"]) == ({}, ("a", "please"))
    assert handoff_in(turn(handing("c")), ["a", "b"]) == ({}, None)
    assert handoff_in([], ["a"]) == ({}, None)


class Form(BaseModel):
    """What is filled in at the end."""

    words: str


def going_on(event: AfterInvocationEvent) -> None:
    """The call is not over with its first turn."""
    if len(event.agent.messages) < 6:
        event.resume = "Anything else?"


@pytest.mark.parametrize(
    ("replies", "options"),
    [
        ((handing("b"), {"toolUse": {"name": "Form", "input": {"words": "x"}}}), {"structured_output_model": Form}),
        ((handing("b"), "Handed over.", "No."), {"hooks": [going_on]}),
        (
            (handing("b"), *[{"toolUse": {"name": "look", "input": {}}}] * 3, "Handed over."),
            {"conversation_manager": SlidingWindowConversationManager(window_size=4)},
        ),
    ],
    ids=["a form is filled in", "a hook goes on", "the window has moved on"],
)
async def test_a_handoff_counts_whatever_comes_behind_it(replies: Any, options: Any) -> None:
    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    options = {**options, "hooks": [On(AfterInvocationEvent, each) for each in options.get("hooks", ())]}
    a = Agent(ScriptedModel(list(replies)), name="a", tools=[look], callback_handler=None, **options)
    b = Agent(ScriptedModel(["Done."]), name="b", callback_handler=None)
    result = await Swarm([a, b]).invoke_async("Go")
    assert (result.status, history(result)) == (Status.COMPLETED, ["a", "b"])


def test_what_is_no_swarm_is_refused() -> None:
    @tool(name="handoff_to_agent")
    async def mine() -> str:
        """Mine."""
        return ""

    kept = agent("a", session_manager=PlacedSession("s", None))
    twice = agent("a")
    for make, what in [
        (lambda: Swarm(), "made of nodes"),
        (lambda: Swarm([]), "at least one agent"),
        (lambda: Swarm([kept]), "Session persistence is not supported for Swarm agents yet"),
        (lambda: Swarm([agent("a"), agent("a")]), "not unique"),
        (lambda: Swarm([twice, twice]), "Duplicate node instance"),
        (lambda: Swarm([agent("a", tools=[mine])]), "handoff_to_agent"),
        (lambda: Swarm([agent("a")], entry_point=agent("b")), "Entry point agent not found"),
        (lambda: Swarm(["a"]), "made of agents"),  # type: ignore[list-item]
        (lambda: Swarm([agent("a")], max_handoffs=0), "max_handoffs"),
        (lambda: Swarm([agent("a")], node_timeout=-1), "node_timeout"),
    ]:
        with pytest.raises(Invalid, match=what):
            make()


def endless(limit: int = 2) -> Swarm:
    """A swarm that reaches its handoff limit."""
    return Swarm(
        [agent("first", handing("second"), "done"), agent("second", handing("first"), "done")], max_handoffs=limit
    )


async def test_a_swarm_in_a_graph_that_reaches_its_limit_gives_a_result_as_alone() -> None:
    alone = await endless().invoke_async("go")
    assert (alone.status, alone.reason) == (Status.FAILED, "Max handoffs reached: 2")
    for first in ({"swarm": endless()}, {"inner": Graph({"swarm": endless()})}):
        behind = agent("behind", "asked in the end")
        graph = Graph({**first, "behind": behind})
        result = await graph.invoke_async("go")
        assert result.status is Status.FAILED
        assert result.reason is not None
        assert result.reason.endswith("swarm: Max handoffs reached: 2")
        assert list(result.results) == list(first)
        assert behind.messages == []
        again = await graph.invoke_async("go")
        assert again.resumed, "the node owes its work: another run of it, in which the models say something else"
        assert again.status is Status.COMPLETED


async def test_a_limited_node_may_be_skipped_or_tried_again() -> None:
    builder = GraphBuilder()
    builder.add_node(endless(), "swarm", on_failure="skip")
    builder.add_node(agent("behind", "went on"), "behind")
    builder.add_edge("swarm", "behind")
    result = await builder.build().invoke_async("go")
    assert result.status is Status.COMPLETED
    assert "went on" in str(result)


class Unusual(ScriptedModel):
    """A model of somebody who keeps settings in their own way."""

    config: Any = None

    def get_config(self) -> Any:
        if isinstance(self.config, Exception):
            raise self.config
        return self.config


@dataclass
class Settings:
    model_id: str = "gpt-5.4"
    context_window_limit: int = 1000


@pytest.mark.parametrize("config", [None, 5, "text", object(), Settings(), {"model_id": "m"}, []])
async def test_a_model_whose_settings_are_no_mapping_answers(config: Any) -> None:
    model = Unusual(["fine"], loop=True)
    model.config = config
    alone = Agent(model, callback_handler=None)
    assert str(await alone.invoke_async("hi", budget=Budget(total_tokens=1000))).strip() == "fine"
    assert str(await Swarm([Agent(model, name="a", callback_handler=None)]).invoke_async("hi")) == "a: fine"
    if isinstance(config, Settings):
        assert model.context_window_limit == 1000


async def test_a_model_whose_settings_fail_is_named() -> None:
    model = Unusual(["fine"])
    model.config = KeyError("settings")
    with pytest.raises(ModelFailed, match="Unusual"):
        await Agent(model, callback_handler=None).invoke_async("hi")


@pytest.mark.parametrize("guard", [False, True])
async def test_an_asynchronous_callback_is_told_of_a_new_swarm_before_its_first_call(guard: bool) -> None:
    seen: list[str] = []

    class Told(HookProvider):
        def register_hooks(self, registry: HookRegistry, **options: Any) -> None:
            registry.add_callback(MultiAgentInitializedEvent, self.built, guard=guard)
            registry.add_callback(BeforeMultiAgentInvocationEvent, self.called)

        async def built(self, event: MultiAgentInitializedEvent) -> None:
            await checkpoint()
            seen.append(f"built {event.source.id}")

        def called(self, event: BeforeMultiAgentInvocationEvent) -> None:
            seen.append("called")

    swarm = Swarm([agent("only")], hooks=[Told()])
    for _ in range(2):
        await swarm.invoke_async("go")
    assert seen == ["built default_swarm", "called", "called"]


class OwnStream(Agent):
    async def stream_async(self, *args: Any, **options: Any) -> Any:
        raise AssertionError("passed by before")
        yield {}


class OwnInvoke(Agent):
    async def invoke_async(self, *args: Any, **options: Any) -> Any:
        raise AssertionError("passed by before")


class Plain(Agent):
    """A subclass that calls are none of."""


@pytest.mark.parametrize("kind", [OwnStream, OwnInvoke])
def test_an_agent_with_calls_of_its_own_is_refused_as_a_node_by_name(kind: type[Agent]) -> None:
    node = kind(ScriptedModel(["fine"]), name="mine", callback_handler=None)
    for build in (lambda: Swarm([node]), lambda: Graph({"mine": node})):
        with pytest.raises(Invalid, match=f"{kind.__name__} has its own .*_async.*hooks"):
            build()


async def test_a_subclass_without_calls_of_its_own_is_a_node() -> None:
    node = Plain(ScriptedModel(["fine"], loop=True), name="mine", callback_handler=None)
    assert str(await Swarm([node]).invoke_async("go")) == "mine: fine"
