"""A program that goes on by the reason why a turn ended."""

from repertory import Agent, AgentResult, ScriptedModel, tool


@tool(effects=False)
def look() -> str:
    """Look around."""
    return "nothing"


def shown(result: AgentResult) -> str:
    match result.stop_reason:
        case "end_turn" | "stop_sequence":
            return result.text
        case "limit_turns" | "limit_time" | "limit_total_tokens":
            return f"no answer: {result}"
        case "interrupt":
            return "\n".join(question.text for question in result.interrupts)
        case "cancelled":
            return "stopped"
        case other:
            return f"the model stopped: {other}"


def main() -> None:
    model = ScriptedModel([{"toolUse": {"name": "look", "input": {}}}], loop=True)
    agent = Agent(model, tools=[look])
    result = agent("Look until you find it.", limits={"turns": 2})
    if result.stop_reason == "limit_turns":
        print(shown(result))
    print(shown(Agent(ScriptedModel(["Done."]))("Go.")))


if __name__ == "__main__":
    main()
