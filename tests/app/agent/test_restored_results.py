"""What conditions read of a node that has ended is the same after a restart as it was before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from repertory import (
    Agent,
    BeforeToolCallEvent,
    Graph,
    GraphBuilder,
    GraphState,
    NodeFailed,
    NodeResult,
    ScriptedModel,
    tool,
)
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.tools.function_tool import schema_class
from repertory.core.result import AgentResult
from repertory.core.run_results import node_result_of
from tests.app.orchestration.session_shelf import Shelf

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


class Route(BaseModel):
    """Where to go."""

    model_config = ConfigDict(populate_by_name=False)
    to: str = Field(alias="to-side")
    when: date


FILLED = {"toolUse": {"name": "Route", "input": {"to-side": "left", "when": "2024-02-29"}}}
ROUTE = Route.model_validate({"to-side": "left", "when": "2024-02-29"})


def agent(*replies: Any, **more: Any) -> Agent:
    return Agent(ScriptedModel(replies or ("fine",), loop=True), callback_handler=None, retry_strategy=None, **more)


def router(form: Any = Route) -> Agent:
    return agent(FILLED, structured_output_model=form)


async def stopped_and_resumed(
    build: Callable[[], object], read: Callable[[GraphState], Any], again: Callable[[], object] | None = None
) -> tuple[list[Any], list[str]]:
    """What a condition behind a failing node sees of the run, before and after a restart, and who ran in all.
    `build` makes the node `first`, `again` the one that is there after the restart.
    """
    seen: list[Any] = []
    shelf = Shelf()

    def condition(state: GraphState) -> bool:
        seen.append(read(state))
        return True

    def graph(node: object, *middle: Any) -> Graph:
        made = GraphBuilder()
        made.add_node(node, "first")
        made.add_node(agent(*middle), "middle")
        made.add_node(agent(), "last")
        made.add_edge("first", "middle", condition)
        made.add_edge("middle", "last", condition)
        return made.set_session_manager(PlacedSession("s", shelf)).build()

    with pytest.raises(NodeFailed):
        await graph(build(), ConnectionError("down")).invoke_async("Go")
    before = len(seen)
    result = await graph((again or build)()).invoke_async()
    assert result.resumed
    assert before < len(seen)
    return seen, [node.node_id for node in result.execution_order]


def first(state: GraphState) -> AgentResult:
    found = state.results["first"].result
    assert isinstance(found, AgentResult)
    return found


async def test_a_condition_chooses_the_same_edge_by_what_a_model_filled_in() -> None:
    seen, ran = await stopped_and_resumed(router, lambda state: first(state).structured_output)
    assert seen == [ROUTE] * len(seen)
    assert ran == ["first", "middle", "last"]


async def test_what_was_filled_in_within_a_nested_graph_is_read_by_the_forms_there() -> None:
    def nested() -> Graph:
        return Graph({"plan": agent(), "router": router()}, id="inner")

    def inner(state: GraphState) -> Any:
        (plan, found) = state.results["first"].get_agent_results()
        return plan.structured_output, found.structured_output

    seen, _ = await stopped_and_resumed(nested, inner)
    assert seen == [(None, ROUTE)] * len(seen)


@pytest.mark.parametrize("form", [None, type("Route", (BaseModel,), {"__annotations__": {"from_": int}})])
async def test_without_a_form_that_fits_it_is_what_json_says_of_it(form: Any) -> None:
    seen, _ = await stopped_and_resumed(
        router, lambda state: first(state).structured_output, again=lambda: router(form)
    )
    assert seen[0] == ROUTE
    assert seen[-1] == {"to-side": "left", "when": "2024-02-29"}


async def test_what_an_object_of_somebody_else_fills_in_is_kept_as_json() -> None:
    class Other:
        async def invoke_async(self, prompt: Any, *, invocation_state: dict[str, Any]) -> AgentResult:
            del prompt, invocation_state
            return AgentResult(stop_reason="end_turn", message=None, structured_output=[date(2024, 2, 29), {1, 2}])

    seen, _ = await stopped_and_resumed(Other, lambda state: first(state).structured_output)
    assert seen[-1] == ["2024-02-29", [1, 2]]


def test_a_value_whose_own_method_fails_is_left_out_of_the_result() -> None:
    class Broken:
        def model_dump(self) -> object:
            raise RuntimeError("not now")

    state = {"broken": Broken(), "sound": 1}
    assert AgentResult(stop_reason="end_turn", message=None, state=state).to_dict()["state"] == {"sound": 1}


async def test_the_request_state_and_what_tools_did_are_there_after_a_restart() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    def note(event: BeforeToolCallEvent) -> None:
        event.invocation_state["request_state"] |= {
            "looked": [1],
            "client": object(),
            "none": None,
            "bad": float("nan"),
        }

    def looking() -> Agent:
        looks = agent({"toolUse": {"name": "look", "input": {}}}, "done", tools=[look])
        looks.add_hook(note)
        return looks

    def what(state: GraphState) -> Any:
        found = first(state)
        return {"looked": found.state["looked"], "none": found.state["none"]}, dict(found.metrics.tool_metrics)

    seen, _ = await stopped_and_resumed(looking, what)
    state, tools = seen[0]
    assert (state, tools["look"].call_count) == ({"looked": [1], "none": None}, 1)
    assert seen == [seen[0]] * len(seen)


def test_a_result_without_them_is_as_short_as_ever_and_an_old_one_still_reads() -> None:
    said: Any = {"role": "assistant", "content": [{"text": "{}"}]}
    plain = AgentResult(stop_reason="end_turn", message=said)
    old = {"type": "agent_result", "message": said, "stop_reason": "end_turn"}
    record = {"result": old, "execution_time": 0, "status": "completed"}
    assert node_result_of(plain, 0).to_record() == record
    assert NodeResult.from_dict(record).result == plain


def too_deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    return value


@pytest.mark.parametrize("value", [object(), float("inf"), {"a": object()}, too_deep()], ids=["a", "b", "c", "d"])
def test_what_json_cannot_say_is_left_out(value: Any) -> None:
    result = AgentResult(stop_reason="end_turn", message=None, structured_output=value, state={"v": value, "w": 1})
    outcome: Any = node_result_of(result, 0).to_record()["result"]
    assert outcome == {"type": "agent_result", "message": None, "stop_reason": "end_turn", "state": {"w": 1}}
