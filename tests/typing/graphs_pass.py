"""What users write around graphs and swarms, as type checkers see it: `mypy --strict` accepts this file."""

from __future__ import annotations

from typing import assert_type

from repertory import (
    AfterNodeCallEvent,
    Agent,
    Budget,
    EdgeCondition,
    Graph,
    GraphBuilder,
    GraphResult,
    GraphState,
    HostedOrchestrator,
    MultiAgentResult,
    NodePolicy,
    RunOptions,
    Runtime,
    Spent,
    Swarm,
    SwarmResult,
    SwarmState,
)


def approved(state: GraphState) -> bool:
    return "yes" in str(state.results["critic"])


def build(writer: Agent, critic: Agent, condition: EdgeCondition = approved) -> Graph:
    builder = GraphBuilder()
    policy: NodePolicy = builder.add_node(writer, "writer", retries=2).policy
    assert policy.retries
    builder.add_node(critic, "critic")
    builder.add_edge("critic", "writer", condition=condition)
    return builder.set_max_node_executions(9).build()


def on_node(event: AfterNodeCallEvent) -> None:
    print(event.source.state.results[event.node_id])


async def calls(graph: Graph, swarm: Swarm) -> None:
    options: RunOptions = {"resume": True, "timeout_s": 3.0}
    assert_type(await graph.invoke_async("x", **options), GraphResult)
    assert_type(graph("x"), GraphResult)
    assert_type(graph.state, GraphState)
    async with graph as opened:
        assert_type(opened, Graph)
    assert_type(await swarm.invoke_async("x"), SwarmResult)
    assert_type(swarm("x").node_history[0].node_id, str)
    assert_type(swarm.state, SwarmState)
    async with swarm as working:
        assert_type(working, Swarm)
    result: MultiAgentResult = await swarm.invoke_async("x")
    assert_type(MultiAgentResult.from_dict(result.to_dict()), MultiAgentResult)
    budget = Budget(total_tokens=9)
    assert_type(budget.by["writer"], Spent)


async def hosted(runtime: Runtime, writer: Agent) -> None:
    graphs = runtime.orchestrator("team", lambda _: Graph({"writer": writer}, id="team"))
    assert_type(graphs, HostedOrchestrator[GraphResult])
    assert_type(await graphs.session("s").invoke("x", timeout_s=3.0), GraphResult)
    assert_type(await runtime.orchestrator("s", lambda _: Swarm([writer], id="s")).session("s").invoke(), SwarmResult)
