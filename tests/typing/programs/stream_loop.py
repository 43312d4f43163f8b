"""A program that prints an answer as it comes."""

import anyio

from repertory import Agent, ScriptedModel, tool


@tool(effects=False)
def level(tank: str) -> str:
    """Read the level of a tank."""
    return "80 %"


async def main() -> None:
    use = {"toolUse": {"name": "level", "input": {"tank": "north"}}}
    agent = Agent(ScriptedModel([use, "It is at 80 %."]), tools=[level])
    async for event in agent.stream_async("How full is the north tank?"):
        if "data" in event:
            print(event["data"], end="", flush=True)
        elif "tool_started" in event:
            print("looking into", event["tool_started"]["name"])
        elif "tool_finished" in event:
            print(event["tool_finished"]["status"])
        elif "message" in event:
            print(event["message"]["role"])
        elif "result" in event:
            print(event["result"].stop_reason, event["result"].metrics.output_tokens)


if __name__ == "__main__":
    anyio.run(main)
