"""A swarm, with its result read."""

import anyio

from repertory import Agent, ScriptedModel, Swarm


def build() -> Swarm:
    coder = Agent(ScriptedModel(["It works."]), name="coder")
    return Swarm([coder], max_handoffs=3)


async def main() -> None:
    async for event in build().stream_async("Build it."):
        if "result" in event:
            print(event["result"].status.value, [node.node_id for node in event["result"].node_history])
        elif "node_id" in event:
            print(event["node_id"].upper())
    result = await build().invoke_async("Build it.")
    for node, each in result.results.items():
        print(node, each.execution_time >= 0, each)


if __name__ == "__main__":
    anyio.run(main)
