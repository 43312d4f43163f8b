"""A program that bounds its calls and handles their errors."""

from repertory import Agent, Budget, ScriptedModel
from repertory.errors import AgentBusy, Invalid, RepertoryError, Throttled


def ask(agent: Agent, prompt: str, budget: Budget) -> str | None:
    try:
        result = agent(prompt, budget=budget, limits={"turns": 4, "output_tokens": 1000}, timeout_s=20)
    except (Throttled, AgentBusy) as error:
        print("later:", error)
        return None
    except RepertoryError as error:
        print("failed:", type(error).__name__)
        return None
    return result.text or str(result)


def main() -> None:
    budget = Budget(total_tokens=10_000)
    agent = Agent(ScriptedModel(["Fine.", Invalid("nonsense")]))
    print(ask(agent, "How are you?", budget), ask(agent, "And now?", budget), budget.spent.calls)


if __name__ == "__main__":
    main()
