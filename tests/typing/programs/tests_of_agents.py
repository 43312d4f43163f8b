"""A test suite of an agent, with a scripted model."""

from collections.abc import Callable

from repertory import Agent, AgentResult, AgentStreamEvent, ScriptedModel, tool


@tool(effects=False)
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def texts(events: list[AgentStreamEvent]) -> str:
    return "".join(event["data"] for event in events if "data" in event)


def run(check: Callable[[AgentResult, ScriptedModel], bool]) -> bool:
    model = ScriptedModel([{"toolUse": {"name": "double", "input": {"number": 4}}}, "It is 8."])
    result = Agent(model, tools=[double])("Double 4.")
    return check(result, model)


def main() -> None:
    assert run(lambda result, _: result.text == "It is 8." and result.stop_reason == "end_turn")
    assert run(lambda _, model: len(model.calls) == 2)
    assert run(lambda result, _: result.metrics.tool_calls["double"] == 1)
    piece: AgentStreamEvent = {"data": "It is", "delta": {"text": "It is"}}
    print(texts([piece, {"data": " 8.", "delta": {"text": " 8."}}]))


if __name__ == "__main__":
    main()
