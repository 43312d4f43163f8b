"""A graph whose nodes are followed while they run."""

import anyio

from repertory import Agent, Graph, GraphResult, ScriptedModel


def build() -> Graph:
    return Graph(
        {
            "writer": Agent(ScriptedModel(["A poem."])),
            "critic": Agent(ScriptedModel(["It rhymes."])),
        }
    )


async def main() -> None:
    result: GraphResult | None = None
    async for event in build().stream_async("Write a poem."):
        if event["type"] == "multiagent_node_start":
            print(event["node_id"], "starts as", event["node_type"])
        elif event["type"] == "multiagent_node_stream":
            inner = event["event"]
            if "data" in inner:
                print(inner["data"])
        elif event["type"] == "multiagent_node_stop":
            print(event["node_id"], event["node_result"].status.value)
        elif event["type"] == "multiagent_handoff":
            print(" ".join(event["from_node_ids"]), "->", " ".join(event["to_node_ids"]))
        elif event["type"] == "multiagent_result":
            result = event["result"]
    assert result is not None
    print(result.status.value, [node.node_id for node in result.execution_order])


if __name__ == "__main__":
    anyio.run(main)
