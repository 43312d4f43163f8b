"""A chat that collects what it prints, with `get`."""

import anyio

from repertory import Agent, AgentResult, Message, ScriptedModel


async def turn(agent: Agent, prompt: str) -> AgentResult:
    text = ""
    last: AgentResult | None = None
    async for event in agent.stream_async(prompt):
        text += event.get("data", "")
        if thought := event.get("reasoningText"):
            print("thinks:", thought.strip())
        if retry := event.get("model_retry"):
            print(f"once more after {retry['delay_s']:.1f} s ({retry['attempt']})")
        last = event.get("result", last)
    assert last is not None
    print(text)
    return last


async def main() -> None:
    history: list[Message] = [{"role": "user", "content": [{"text": "I am Ada."}]}]
    history.append({"role": "assistant", "content": [{"text": "Hello Ada."}]})
    agent = Agent(ScriptedModel(["You are Ada.", "Bye."]), messages=history)
    for line in ("Who am I?", "Bye!"):
        result = await turn(agent, line)
        print(result.metrics.usage["inputTokens"], len(agent.messages))


if __name__ == "__main__":
    anyio.run(main)
