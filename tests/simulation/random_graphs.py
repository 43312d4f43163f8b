"""Graphs of any shape, made of a seed: ways that fork and join, loops, nested graphs and swarms, people to be asked."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from repertory import (
    Agent,
    BeforeNodeCallEvent,
    Graph,
    GraphBuilder,
    GraphState,
    ScriptedModel,
    Swarm,
    ToolContext,
    tool,
)
from repertory.app.sessions.sessions import PlacedSession
from repertory.core.messages import Message
from tests.simulation.killed_worlds import World

KINDS = ("plain", "asks", "loop", "pair", "graph", "swarm")
Condition = Callable[[GraphState], bool]


@dataclass(frozen=True)
class Worker:
    """An agent that does things outside each time that it is told something."""

    name: str
    steps: int = 1
    """How many, all asked for at once."""
    asks: bool = False
    """Whether a person has to agree to each."""
    handing: str | None = None
    """To whom it hands over behind that."""
    delay_s: float = 0.0

    def agent(self, world: World) -> Agent:
        @tool(name="work")
        async def work(step: int, tool_context: ToolContext) -> str:
            """Do it."""
            if self.asks:
                assert tool_context.interrupt("may I?", reason=f"{self.name} {step}") == "yes"
            await anyio.sleep(self.delay_s)
            world.effect(f"{self.name} {tool_context.idempotency_key}")
            return "done"

        model = ScriptedModel([self._reply], loop=True)
        return Agent(model, tools=[work], name=self.name, callback_handler=None, unknown_tool_outcome="retry")

    def _reply(self, messages: Sequence[Message], *_: object) -> Any:
        told = max(
            place for place, each in enumerate(messages) if each["role"] == "user" and "text" in each["content"][-1]
        )
        turn = [block for each in messages[told:] for block in each["content"]]
        done = sum("toolResult" in block and block["toolResult"]["status"] == "success" for block in turn)
        if done < self.steps:
            return [{"toolUse": {"name": "work", "input": {"step": step}}} for step in range(done, self.steps)]
        if done == self.steps and self.handing is not None:
            given = {"agent_name": self.handing, "message": f"from {self.name}", "context": {"by": self.name}}
            return {"toolUse": {"name": "handoff_to_agent", "input": given}}
        return f"{self.name} was told {len(str(messages[told]['content']))} characters, the {told}th message"


class RandomGraph:
    """The same graph whenever it is built."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.seed = seed
        self.kinds = [rng.choice(KINDS) for _ in range(rng.randint(2, 5))]
        places = range(len(self.kinds))
        self.edges = [(one, other) for other in places for one in range(other) if rng.random() < 0.5]
        self.dead = {edge for edge in self.edges if rng.random() < 0.2}
        """Edges whose condition never holds."""
        self.steps = [rng.randint(1, 2) for _ in places]
        self.rounds = [rng.randint(2, 3) for _ in places]
        self.delays = [rng.choice([0.0, 1.0]) for _ in places]
        self.resets, self.asks_first = rng.random() < 0.5, rng.random() < 0.3

    def __repr__(self) -> str:
        return f"RandomGraph({self.seed})"

    def build(self, world: World) -> Graph:
        builder = GraphBuilder().set_session_manager(PlacedSession("s", world, takeover=True))
        last = [self._add(builder, world, place) for place in range(len(self.kinds))]
        for one, other in self.edges:
            source, leaves = last[one]
            builder.add_edge(source, f"n{other}", _never if (one, other) in self.dead else leaves)
        led_to = {other for _, other in self.edges}
        for place in range(len(self.kinds)):
            if place not in led_to:
                builder.set_entry_point(f"n{place}")
        graph = builder.reset_on_revisit(self.resets).set_max_node_executions(60).build()
        if self.asks_first:
            graph.add_hook(self._gate)
        return graph

    def _gate(self, event: BeforeNodeCallEvent) -> None:
        if event.node_id == f"n{len(self.kinds) - 1}":
            assert event.interrupt("go?") == "yes"

    def _add(self, builder: GraphBuilder, world: World, place: int) -> tuple[str, Condition | None]:
        """One part: the node that leads on from it, and when."""
        name, kind, rounds = f"n{place}", self.kinds[place], self.rounds[place]

        def worker(suffix: str = "", handing: str | None = None) -> Agent:
            own = f"{name}{suffix}"
            asks = kind == "asks"
            made = Worker(own, self.steps[place], asks=asks, handing=handing, delay_s=self.delays[place])
            return made.agent(world)

        match kind:
            case "graph":
                builder.add_node(Graph({"x": worker("x"), "y": worker("y")}, id=f"g{place}"), name)
            case "swarm":
                builder.add_node(Swarm([worker("x", handing=f"{name}y"), worker("y")], id=f"s{place}"), name)
            case _:
                builder.add_node(worker(), name)
        if kind == "loop":
            builder.add_edge(name, name, _while(name, rounds))
            return name, _after(name, rounds)
        if kind == "pair":
            builder.add_node(worker("b"), f"{name}b")
            builder.add_edge(name, f"{name}b")
            builder.add_edge(f"{name}b", name, _while(f"{name}b", rounds))
            return f"{name}b", _after(f"{name}b", rounds)
        return name, None


def _times(state: GraphState, node: str) -> int:
    return sum(each.node_id == node for each in state.execution_order)


def _while(node: str, rounds: int) -> Condition:
    return lambda state: _times(state, node) < rounds


def _after(node: str, rounds: int) -> Condition:
    return lambda state: _times(state, node) >= rounds


def _never(_: GraphState) -> bool:
    return False
